// Bench measures PocketMQ beside an embedded NATS JetStream, in one process and
// on one disk, and prints a table in Markdown:
//
//	cd bench && go run .
//
// Each scenario runs on every system in turn, round by round, so that a machine
// that is busy for a while is busy for all of them. Rates are medians over the
// rounds, ratios are medians of the rounds' ratios. Everything runs on 127.0.0.1
// and in temporary directories, and is closed and removed at the end.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"runtime/pprof"
	"time"
)

type options struct {
	seconds float64
	rounds  int
	backlog int
	only    string
	dir     string
	profile string
}

func main() {
	var o options
	flag.Float64Var(&o.seconds, "seconds", 1, "`seconds` that each system sends in each round")
	flag.IntVar(&o.rounds, "rounds", 3, "`rounds` of every scenario")
	flag.IntVar(&o.backlog, "backlog", 200_000, "`messages` that the consumption scenarios consume")
	flag.StringVar(&o.only, "only", "", "run only the scenarios whose name matches this `pattern`")
	flag.StringVar(&o.dir, "dir", "", "`directory` for the stores; a temporary one by default. A file system in memory would flatter whoever syncs")
	flag.StringVar(&o.profile, "cpuprofile", "", "write a CPU profile to this `file`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, out io.Writer) error {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if o.profile != "" {
		f, err := os.Create(o.profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	d := time.Duration(o.seconds * float64(time.Second))
	fmt.Fprintf(out, "%s %s/%s, GOMAXPROCS %d, %d rounds of %v\n\n", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), o.rounds, d)
	fmt.Fprintln(out, "| network | body | load | system | msg/s | CPU per message | of JetStream |")
	fmt.Fprintln(out, "|---|---|---|---|---|---|---|")
	for _, sc := range scenarios(o.backlog) {
		if !only.MatchString(sc.name) {
			continue
		}
		results, err := sc.compare(ctx, o.dir, o.rounds, d)
		if err != nil {
			return err
		}
		sc.print(out, results)
	}
	fmt.Fprintln(out)
	return coldConsumer(ctx, o, only, d, out)
}

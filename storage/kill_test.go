package storage

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Durability table, kill -9, both modes: whatever a process acknowledged before it was killed is there afterwards. This says
// nothing about power loss, since the operating system keeps what the process wrote.
func TestKilledProcessLosesNothingAcknowledged(t *testing.T) {
	for _, flush := range []FlushMode{FlushSync, FlushAsync} {
		t.Run(flush.String(), func(t *testing.T) {
			dir := t.TempDir()
			rounds := 3
			if testing.Short() {
				rounds = 1
			}
			acked := map[place][]uint64{}
			for round := range rounds {
				n := killChild(t, fmt.Sprintf("%d %d %s", flush, round, dir), 300+200*round, acked)
				if n == 0 {
					t.Fatal("the child acknowledged nothing")
				}
				checkKilled(t, dir, flush, acked)
			}
		})
	}
}

// killChild starts a writer, kills it after it has acknowledged the given number of records, and adds those to acked.
func killChild(t *testing.T, order string, enough int, acked map[place][]uint64) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestKillChild$", "-test.v")
	cmd.Env = append(os.Environ(), childVariable+"="+order)
	out := must1(cmd.StdoutPipe())(t)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	must(t, cmd.Start())
	n := 0
	var log strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var p place
		var id uint64
		if _, err := fmt.Sscanf(lines.Text(), "acknowledged %s %d %d", &p.topic, &p.queue, &id); err != nil {
			fmt.Fprintln(&log, lines.Text())
			continue
		}
		acked[p] = append(acked[p], id)
		if n++; n == enough {
			must(t, cmd.Process.Kill()) // what the child has written to the pipe is still read, as acknowledged
		}
	}
	if err := cmd.Wait(); err == nil || n < enough {
		t.Fatalf("the child ended by itself: %v\n%s%s", err, log.String(), stderr.String())
	}
	return n
}

// checkKilled opens what a killed process left.
func checkKilled(t *testing.T, dir string, flush FlushMode, acked map[place][]uint64) {
	t.Helper()
	s := must1(Open(Options{Dir: dir, Flush: flush, SegmentBytes: 1 << 20}))(t)
	for p, ids := range acked {
		topic, ok := s.Topic(p.topic)
		if !ok {
			t.Fatalf("topic %s is lost", p.topic)
		}
		have := map[uint64]int{}
		for _, r := range readAll(t, s, topic, p.queue) {
			have[r.id]++
		}
		for _, id := range ids {
			if have[id] != 1 {
				t.Errorf("%v: acknowledged record %d is there %d times", p, id, have[id])
			}
		}
	}
	checkStore(t, s)
	must(t, s.Close())
}

// TestKillChild writes until it is killed and says what was acknowledged.
func TestKillChild(t *testing.T) {
	var flush FlushMode
	var round int
	var dir string
	if _, err := fmt.Sscanf(childOrder(t), "%d %d %s", &flush, &round, &dir); err != nil {
		t.Fatal(err)
	}
	s := must1(Open(Options{Dir: dir, Flush: flush, SegmentBytes: 1 << 20}))(t)
	topic := must1(s.OpenTopic(context.Background(), "topic"))(t)
	l := newLedger()
	l.nextID = uint64(round) << 32
	var flying []*entry
	for n := 0; ; n++ {
		flying = append(flying, l.submit(s, topic, int32(n%3), 0, 100+n%3000))
		if len(flying) < 16 {
			continue
		}
		must(t, <-flying[0].done)
		// One write per line: a line that the parent sees whole was acknowledged.
		fmt.Printf("acknowledged topic %d %d\n", (n-15)%3, flying[0].sent[0].id)
		flying = flying[1:]
	}
}

package storage

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Shares of the unsynced data that a power loss may leave on the disk, in percent.
var keptShares = []int{0, 10, 50, 90, 99}

// diskDelay is the longest a sync of the log takes on these disks.
const diskDelay = 20 * time.Millisecond

// image is a disk after a power loss, with what was known at that moment.
type image struct {
	disk  *vfs.MemFS
	at    string // where the power went
	time  time.Time
	known *workload
}

// lossBound is the instant before which an acknowledgement must survive: any with sync, all but the last flush interval
// and the sync itself with async.
func (i image) lossBound(flush FlushMode) time.Time {
	if flush == FlushSync {
		return time.Time{}
	}
	return i.time.Add(-500*time.Millisecond - 2*diskDelay)
}

// progressBound is the instant before which a group's offsets must survive.
func (i image) progressBound(flush FlushMode) time.Time {
	bound := i.time
	if flush == FlushAsync {
		bound = i.lossBound(flush)
	}
	return bound.Add(-offsetsDelay - 2*diskDelay)
}

// check opens an image and compares it with what was known, uses it, and opens it once more.
func (i image) check(t *testing.T, flush FlushMode) {
	t.Helper()
	time.Sleep(time.Until(i.time)) // each bubble begins at the same time; the clock of a computer does not
	s, err := Open(crashOptions(i.disk, flush))
	if err != nil {
		t.Fatalf("%s: does not open: %v", i.at, err)
	}
	i.known.verify(t, s, i.lossBound(flush))
	i.known.verifyProgress(t, s, i.progressBound(flush))
	checkStore(t, s)
	ends := queueEnds(t, s)
	appendEverywhere(t, s)
	checkStore(t, s)
	must(t, s.Close())

	s = must1(Open(crashOptions(i.disk, flush)))(t)
	for p, end := range queueEnds(t, s) {
		if want := ends[p] + 1; p.queue != timerQueue && end != want { // a new topic's queues were empty
			t.Errorf("%s: %v ends at %d after one more record, want %d", i.at, p, end, want)
		}
	}
	time.Sleep(10 * time.Second) // every timer is due
	synctest.Wait()
	i.known.l.verifyTimersFired(t, s, i.lossBound(flush))
	checkStore(t, s)
	must(t, s.Close())
	if t.Failed() {
		t.Fatalf("failed at the image: %s", i.at)
	}
}

// queueEnds returns the next offset of every queue the workload may have used.
func queueEnds(t *testing.T, s *Store) map[place]int64 {
	t.Helper()
	ends := map[place]int64{}
	for _, topic := range s.Topics() {
		for _, queue := range []int32{0, 1, 2, timerQueue} {
			_, next, err := s.Bounds(topic, queue)
			must(t, err)
			ends[place{topic.Name(), queue}] = next
		}
	}
	return ends
}

func appendEverywhere(t *testing.T, s *Store) {
	t.Helper()
	l := newLedger()
	l.nextID = 1 << 40
	must1(s.OpenTopic(context.Background(), "made-after-the-crash"))(t)
	for _, topic := range s.Topics() {
		for queue := range int32(3) {
			must(t, <-l.submit(s, topic, queue, 0, 100).done)
		}
	}
}

// camera takes images of a crashable disk while a workload runs, each just before a write-side operation. The operations
// of this disk come one at a time, so that the clone cannot meet another one halfway, and nothing waits in virtual time:
// Pebble holds a mutex over some of them, and whoever waits for a mutex keeps a bubble from being idle.
type camera struct {
	disk   *vfs.MemFS
	work   *workload
	rng    *rand.Rand
	wanted func(n int, op diskOp) []int // shares to take pictures with before the n-th operation
	count  int
	images []image
}

func (c *camera) hook(op diskOp) error {
	c.count++
	for _, share := range c.wanted(c.count, op) {
		// What was acknowledged before the picture must be on it; what is submitted until after it may be.
		owed := c.work.snapshot()
		disk := c.disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: share, RNG: c.rng})
		c.images = append(c.images, image{
			disk:  disk,
			at:    fmt.Sprintf("before operation %d (%s %s), %d %% of the unsynced kept", c.count, op.kind, op.name, share),
			time:  time.Now(),
			known: c.work.snapshot().asOf(owed),
		})
	}
	return nil
}

// film runs a workload on a crashable disk, with log rotations in between, and returns the pictures.
func film(t *testing.T, seed uint64, flush FlushMode, steps int, wanted func(int, diskOp) []int) []image {
	t.Helper()
	mem := vfs.NewCrashableMem()
	disk := newFaultFS(mem)
	disk.serial = true
	work := newWorkload(seed)
	c := &camera{disk: mem, work: work, rng: rand.New(rand.NewPCG(seed, 5)), wanted: wanted}
	disk.onOp(c.hook)
	s := must1(Open(crashOptions(disk, flush)))(t)
	for range 4 {
		must(t, work.run(context.Background(), s, steps/5))
		must(t, rotate(s))
	}
	must(t, work.run(context.Background(), s, steps/5))
	must(t, s.Close())
	if work.l.trimmedTo == 0 || len(work.deleted) == 0 {
		t.Errorf("seed %d trims to %d and deletes %d topics; want some of both", seed, work.l.trimmedTo, len(work.deleted))
	}
	return c.images
}

// rotate makes Pebble close its log and begin another one, as a full memtable does.
func rotate(s *Store) error {
	db, release, err := s.read()
	if err != nil {
		return err
	}
	defer release()
	_, err = db.AsyncFlush()
	return err
}

// Durability table, power loss, both modes: at every file operation of a workload the power may go, and whatever the disk
// kept of what was not synced, the store opens, holds a prefix per queue, and in sync mode everything acknowledged, in async
// mode everything acknowledged before the flush interval. Logs fill up and rotate many times; what is done around a rotation
// (creating, renaming, syncing the directory) is pictured twice.
func TestPowerLossAtEveryFileOperation(t *testing.T) {
	for _, flush := range []FlushMode{FlushSync, FlushAsync} {
		t.Run(flush.String(), func(t *testing.T) {
			every, seeds := 2, uint64(2)
			if testing.Short() {
				every = 60
			}
			for seed := range seeds {
				var images []image
				synctest.Test(t, func(t *testing.T) {
					images = film(t, seed, flush, 160, func(n int, op diskOp) []int {
						share := keptShares[(n/every)%len(keptShares)]
						around := op.kind == "create" || op.kind == "reuse" || op.kind == "rename" || op.kind == "syncdir"
						switch {
						case around && !testing.Short():
							return []int{share, keptShares[(n+2)%len(keptShares)]}
						case n%every == int(seed)%every:
							return []int{share}
						}
						return nil
					})
				})
				if len(images) == 0 {
					t.Fatal("no picture was taken")
				}
				for _, i := range images {
					synctest.Test(t, func(t *testing.T) { i.check(t, flush) })
				}
				t.Logf("seed %d: %d images", seed, len(images))
			}
		})
	}
}

// Durability table, power loss, both modes, with much unsynced data: crashes at random moments, after a rotation too, and
// again right after the store was opened from the image of the first crash.
func TestPowerLossAtRandomMoments(t *testing.T) {
	seeds := uint64(12)
	if testing.Short() {
		seeds = 2
	}
	for _, flush := range []FlushMode{FlushSync, FlushAsync} {
		t.Run(flush.String(), func(t *testing.T) {
			for seed := range seeds {
				for _, share := range keptShares {
					synctest.Test(t, func(t *testing.T) { crashTwice(t, flush, seed, share) })
				}
			}
		})
	}
}

func crashTwice(t *testing.T, flush FlushMode, seed uint64, share int) {
	rng := rand.New(rand.NewPCG(seed, uint64(share)))
	mem := vfs.NewCrashableMem()
	disk := newFaultFS(mem)
	// Only the log is slow, see camera.
	delay := func(op diskOp) error {
		if op.kind == "sync" && isLog(op.name) {
			time.Sleep(diskDelay / 2)
		}
		return nil
	}
	s := must1(Open(crashOptions(disk, flush)))(t)
	disk.onOp(delay)
	work := newWorkload(seed*100 + uint64(share))
	ctx := context.Background()
	must(t, work.run(ctx, s, 20+rng.IntN(60)))
	if rng.IntN(2) == 0 {
		disk.onOp(nil)
		must(t, rotate(s))
		disk.onOp(delay)
		must(t, work.run(ctx, s, 10))
	}
	running := make(chan error, 1)
	go func() { running <- work.run(ctx, s, 60) }()
	time.Sleep(time.Duration(rng.IntN(1200)) * time.Millisecond)
	synctest.Wait()
	clone := func(fs *vfs.MemFS) *vfs.MemFS {
		return fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: share, RNG: rng})
	}
	i := image{disk: clone(mem), at: fmt.Sprintf("seed %d, %d %%", seed, share), time: time.Now(), known: work.snapshot()}
	must(t, <-running)
	disk.onOp(nil)
	must(t, s.Close())

	// The second crash falls into the first moments of the reopened store.
	s, err := Open(crashOptions(i.disk, flush))
	if err != nil {
		t.Fatalf("%s: does not open: %v", i.at, err)
	}
	i.known.verify(t, s, i.lossBound(flush))
	synctest.Wait()
	second := image{disk: clone(i.disk), at: i.at + ", again", time: i.time, known: i.known}
	must(t, s.Close())
	second.check(t, flush)
}

// Metadata and power loss: topics, metadata and group offsets are replaced whole or not at all, an operation at a time.
func TestPowerLossWhileMetadataIsSaved(t *testing.T) {
	for _, flush := range []FlushMode{FlushSync, FlushAsync} {
		t.Run(flush.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { crashMetadata(t, flush) })
		})
	}
}

func crashMetadata(t *testing.T, flush FlushMode) {
	mem := vfs.NewCrashableMem()
	disk := newFaultFS(mem)
	s := must1(Open(crashOptions(disk, flush)))(t)
	ctx := context.Background()
	rng := rand.New(rand.NewPCG(3, 4))
	// A pair of keys that change together: half of a change would show.
	for n := range 30 {
		topic := must1(s.OpenTopic(ctx, fmt.Sprintf("made-%d", n)))(t)
		value := fmt.Appendf(nil, "%d", n)
		must(t, s.Apply(ctx, &Request{Changes: []Change{PutMeta("a", "x", value), PutMeta("b", "y", value)}}))
		s.CommitOffset("group", topic, 0, int64(n))
		s.FlushOffsets()
		pending := make(chan error, 1)
		go func() {
			pending <- s.Apply(ctx, &Request{Changes: []Change{PutMeta("a", "x", []byte("new")), PutMeta("b", "y", []byte("new"))}})
		}()
		hold := make(chan struct{})
		disk.onOp(func(diskOp) error { <-hold; return nil })
		synctest.Wait()
		clone := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: keptShares[n%len(keptShares)], RNG: rng})
		disk.onOp(nil)
		close(hold)
		must(t, <-pending)

		c := must1(Open(crashOptions(clone, flush)))(t)
		x, _, err := c.Meta("a", "x")
		must(t, err)
		y, _, err := c.Meta("b", "y")
		must(t, err)
		if string(x) != string(y) {
			t.Errorf("round %d: half a change: %q and %q", n, x, y)
		}
		if flush == FlushSync {
			if string(x) != string(value) && string(x) != "new" {
				t.Errorf("round %d: metadata %q, acknowledged %q", n, x, value)
			}
			if _, ok := c.Topic(topic.Name()); !ok {
				t.Errorf("round %d: the topic is lost", n)
			}
		}
		checkStore(t, c)
		must(t, c.Close())
	}
	must(t, s.Close())
}

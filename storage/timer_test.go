package storage

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"
)

// storeTimer stores a timer that is due after a delay.
func storeTimer(t tester, s *Store, topic *Topic, body string, delay time.Duration) Record {
	t.Helper()
	r := bodyRecord(topic, 0, body)
	r.DeliverAt = time.Now().Add(delay).UnixMilli()
	req := &Request{Records: []Record{r}}
	mustApply(t, s, req)
	return req.Records[0]
}

// wait lets virtual time pass and everything that is due happen.
func wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestTimerIsDeliveredAtItsMillisecond(t *testing.T) {
	for _, delay := range []time.Duration{time.Millisecond, time.Second, 999 * time.Millisecond, 1001 * time.Millisecond, time.Hour, 365 * 24 * time.Hour} {
		t.Run(delay.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := mustOpen(t, Options{})
				defer mustClose(t, s)
				topic := mustTopic(t, s, "T")
				begin := time.Now()
				r := storeTimer(t, s, topic, "m", delay)
				if r.Offset != 0 || r.Position < TimerPositionBase {
					t.Fatalf("timer got offset %d, position %d", r.Offset, r.Position)
				}
				wait(delay - time.Millisecond)
				if got := readQueue(t, s, topic, 0); len(got) > 0 && delay > time.Millisecond {
					t.Fatalf("delivered %v before its time", got)
				}
				wait(time.Until(begin.Add(delay + time.Millisecond)))
				got := readQueue(t, s, topic, 0)
				if len(got) != 1 || got[0].body != "m" {
					t.Fatalf("delivered %v", got)
				}
				late := got[0].time - begin.Add(delay).UnixMilli()
				if late < 0 || late > 1 {
					t.Fatalf("delivered %d ms after its time", late)
				}
			})
		})
	}
}

func TestTimerThatIsDueAlreadyIsDeliveredAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpen(t, Options{})
		defer mustClose(t, s)
		topic := mustTopic(t, s, "T")
		storeTimer(t, s, topic, "future", time.Minute)
		wait(2 * time.Minute) // the cursor is beyond what follows
		storeTimer(t, s, topic, "past", -time.Hour)
		r := bodyRecord(topic, 0, "1970")
		r.DeliverAt = 1
		mustApply(t, s, &Request{Records: []Record{r}})
		wait(2 * time.Millisecond)
		if got := bodies(readQueue(t, s, topic, 0)); !slices.Equal(got, []string{"future", "past", "1970"}) {
			t.Fatalf("delivered %q", got)
		}
	})
}

func TestEarlierTimerWakesASleepingStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpen(t, Options{})
		defer mustClose(t, s)
		topic := mustTopic(t, s, "T")
		storeTimer(t, s, topic, "later", time.Hour)
		wait(time.Second)
		storeTimer(t, s, topic, "sooner", time.Second)
		wait(time.Second + time.Millisecond)
		if got := bodies(readQueue(t, s, topic, 0)); !slices.Equal(got, []string{"sooner"}) {
			t.Fatalf("delivered %q", got)
		}
		wait(time.Hour)
		if got := bodies(readQueue(t, s, topic, 0)); !slices.Equal(got, []string{"sooner", "later"}) {
			t.Fatalf("delivered %q", got)
		}
	})
}

func TestLargeTimerDoesNotBlockOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpen(t, Options{})
		defer mustClose(t, s)
		topic := mustTopic(t, s, "T")
		var want []string
		for i, size := range []int{1 << 10, 4 << 20, 1 << 10, 4 << 20, 3 << 20} {
			want = append(want, fmt.Sprint(i, string(make([]byte, size))))
			storeTimer(t, s, topic, want[i], time.Second)
		}
		wait(time.Second + time.Millisecond)
		if got := bodies(readQueue(t, s, topic, 0)); !slices.Equal(got, want) {
			t.Fatalf("delivered %d of %d records, or others", len(got), len(want))
		}
	})
}

func TestTimerKeepsEverythingOfItsRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpen(t, Options{})
		defer mustClose(t, s)
		topic := mustTopic(t, s, "T")
		r := bodyRecord(topic, 3, "m", "k1", "k2")
		r.TagHash = -42
		r.DeliverAt = time.Now().Add(time.Minute).UnixMilli()
		mustApply(t, s, &Request{Records: []Record{r}})
		wait(time.Minute + time.Millisecond)
		var tag int64
		res, err := s.Read(t.Context(), Read{Topic: topic, Queue: 3, Near: Limit{Count: 1, Bytes: 1 << 20},
			Match: func(tagHash int64, _ []byte) bool { tag = tagHash; return true }})
		if err != nil || res.Status != Found || tag != -42 {
			t.Fatalf("read: %v, %v, tag hash %d", res.Status, err, tag)
		}
		got := parseBody(t, res.Data)
		for _, key := range []string{"k1", "k2"} {
			found, err := s.Query(t.Context(), KeyQuery{Topic: topic, Key: key})
			if err != nil || len(found) != 1 || found[0].Position != got.position {
				t.Fatalf("query of %s: %v, %v, want the record at %d", key, found, err, got.position)
			}
		}
	})
}

func TestTimersOfADeletedTopicVanish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpen(t, Options{})
		defer mustClose(t, s)
		old := mustTopic(t, s, "T")
		other := mustTopic(t, s, "U")
		storeTimer(t, s, old, "gone", time.Second)
		storeTimer(t, s, old, "gone too", 2*time.Second)
		storeTimer(t, s, other, "stays", time.Second)
		if err := s.DeleteTopic(t.Context(), "T"); err != nil {
			t.Fatal(err)
		}
		again := mustTopic(t, s, "T")
		wait(3 * time.Second)
		if got := readQueue(t, s, again, 0); len(got) != 0 {
			t.Fatalf("the topic made again got %v", got)
		}
		if got := bodies(readQueue(t, s, other, 0)); !slices.Equal(got, []string{"stays"}) {
			t.Fatalf("delivered %q", got)
		}
		if waiting, bytes, dropped := s.timers.counts(); waiting != 0 || bytes != 0 || dropped != 2 {
			t.Fatalf("%d timers of %d bytes wait and %d vanished, want 0, 0, 2", waiting, bytes, dropped)
		}
	})
}

// Timers at 1, 3 and 30 days, and a restart every 12 hours: each is delivered once, at its time.
func TestTimersSurviveRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		o := Options{Dir: "store", FS: fs}
		s := mustOpen(t, o)
		topic := mustTopic(t, s, "T")
		begin := time.Now()
		delays := []time.Duration{24 * time.Hour, 72 * time.Hour, 30*24*time.Hour + time.Millisecond}
		for _, d := range delays {
			storeTimer(t, s, topic, d.String(), d)
		}
		for time.Since(begin) < 31*24*time.Hour {
			mustClose(t, s)
			s = mustOpen(t, o)
			topic = mustTopic(t, s, "T")
			wait(12 * time.Hour)
			n := 0
			for _, d := range delays {
				if d <= time.Since(begin) {
					n++
				}
			}
			waiting, _, _ := s.timers.counts()
			if got := readQueue(t, s, topic, 0); len(got) != n || int(waiting) != len(delays)-n {
				t.Fatalf("after %v: %d delivered, %d waiting", time.Since(begin), len(got), waiting)
			}
		}
		for i, r := range readQueue(t, s, topic, 0) {
			late := r.time - begin.Add(delays[i]).UnixMilli()
			if r.body != delays[i].String() || late < 0 || late > 1 {
				t.Errorf("timer %v was delivered as %q %d ms late", delays[i], r.body, late)
			}
		}
		mustClose(t, s)
	})
}

// What became due while the store was closed is delivered when it opens, in order.
func TestTimersDueWhileClosedAreDeliveredAtOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := Options{Dir: "store", FS: vfs.NewMem()}
		s := mustOpen(t, o)
		topic := mustTopic(t, s, "T")
		storeTimer(t, s, topic, "b", 2*time.Minute)
		storeTimer(t, s, topic, "a", time.Minute)
		last := storeTimer(t, s, topic, "c", 3*time.Minute)
		mustClose(t, s)
		wait(time.Hour)
		s = mustOpen(t, o)
		defer mustClose(t, s)
		topic = mustTopic(t, s, "T")
		synctest.Wait()
		if got := bodies(readQueue(t, s, topic, 0)); !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Fatalf("delivered %q", got)
		}
		if r := storeTimer(t, s, topic, "d", time.Minute); r.Position != last.Position+1 {
			t.Fatalf("position %d after %d: a sequence number repeats or is lost", r.Position, last.Position)
		}
	})
}

// A clock that was set back must not make new timers wait until it has caught up with the cursor.
func TestTimerIsOnTimeAfterTheClockWasSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := Options{Dir: "store", FS: vfs.NewMem()}
		db, err := pebble.Open("store", &pebble.Options{FS: o.FS, FormatMajorVersion: formatVersion})
		if err != nil {
			t.Fatal(err)
		}
		state := timerState{cursor: timerKey{uint64(time.Now().Add(time.Hour).UnixMilli()), 7}, seq: 8}
		if err := db.Set([]byte{kindTimerState}, state.append(nil), pebble.Sync); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		s := mustOpen(t, o)
		defer mustClose(t, s)
		topic := mustTopic(t, s, "T")
		storeTimer(t, s, topic, "a", time.Second)
		storeTimer(t, s, topic, "b", 2*time.Hour)
		wait(time.Second + time.Millisecond)
		if got := bodies(readQueue(t, s, topic, 0)); !slices.Equal(got, []string{"a"}) {
			t.Fatalf("delivered %q", got)
		}
		wait(2 * time.Hour)
		if got := bodies(readQueue(t, s, topic, 0)); !slices.Equal(got, []string{"a", "b"}) {
			t.Fatalf("delivered %q", got)
		}
	})
}

func TestTimerValueKeepsTheRecord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Record{
			Topic:         &Topic{id: rapid.Uint32().Draw(t, "topic")},
			Queue:         rapid.Int32().Draw(t, "queue"),
			TagHash:       rapid.Int64().Draw(t, "tag"),
			Keys:          rapid.SliceOfN(rapid.Uint64(), 0, 4).Draw(t, "keys"),
			DeliverAt:     rapid.Int64().Draw(t, "at"),
			Bytes:         rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"),
			QueueOffsetAt: rapid.Int32().Draw(t, "offset at"),
			PositionAt:    rapid.Int32().Draw(t, "position at"),
			StoreTimeAt:   rapid.Int32().Draw(t, "time at"),
		}
		value := appendTimerValue(nil, &r)
		if len(value) != timerValueSize(&r) {
			t.Fatalf("value of %d bytes, size says %d", len(value), timerValueSize(&r))
		}
		var got Record
		topic, err := parseTimerValue(value, &got)
		if err != nil {
			t.Fatal(err)
		}
		if topic != r.Topic.id || got.Queue != r.Queue || got.TagHash != r.TagHash || !slices.Equal(got.Keys, r.Keys) ||
			got.DeliverAt != 0 || string(got.Bytes) != string(r.Bytes) || got.QueueOffsetAt != r.QueueOffsetAt ||
			got.PositionAt != r.PositionAt || got.StoreTimeAt != r.StoreTimeAt {
			t.Fatalf("%+v of topic %d became %+v of topic %d", r, r.Topic.id, got, topic)
		}
	})
}

func FuzzTimerValue(f *testing.F) {
	f.Add(appendTimerValue(nil, &Record{Topic: &Topic{id: 1}, Keys: []uint64{1, 2}, Bytes: []byte("record")}))
	// Whatever is accepted encodes to the same bytes but for the deliver time, which is not kept.
	f.Fuzz(func(t *testing.T, value []byte) {
		var r Record
		topic, err := parseTimerValue(value, &r)
		if err != nil {
			return
		}
		r.Topic, r.DeliverAt = &Topic{id: topic}, int64(binary.BigEndian.Uint64(value[16:]))
		if got := appendTimerValue(nil, &r); string(got) != string(value) {
			t.Fatalf("%x became %x", value, got)
		}
	})
}

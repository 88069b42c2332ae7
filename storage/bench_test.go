package storage

import (
	"fmt"
	"testing"
	"time"
)

// window submits requests with so many in flight; Completed runs on the
// store's goroutine and hands the request back.
type window struct {
	free chan *Request
	err  chan error
}

func (w *window) Completed(r *Request, err error) {
	if err != nil {
		select {
		case w.err <- err:
		default:
		}
	}
	w.free <- r
}

// BenchmarkSubmit appends records to 8 queues with 4096 in flight, synced
// before each answer, on a real disk.
func BenchmarkSubmit(b *testing.B) {
	for _, size := range []int{1024, 128} {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			s := openTest(b, Options{Dir: b.TempDir(), WaitTime: time.Minute})
			topic := openTopic(b, s, "bench")
			const inFlight, queues = 4096, 8
			w := &window{free: make(chan *Request, inFlight), err: make(chan error, 1)}
			for i := range inFlight {
				r := &Request{Completion: w}
				*r.One() = textRecord(topic, int32(i%queues), string(make([]byte, size-textHeader)))
				w.free <- r
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				s.Submit(<-w.free)
			}
			for range inFlight {
				<-w.free
			}
			b.StopTimer()
			select {
			case err := <-w.err:
				b.Fatal(err)
			default:
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
			b.ReportMetric(float64(s.counts.records.Load())/float64(s.counts.groups.Load()), "records/group")
		})
	}
}

// BenchmarkIntake is what Submit costs its caller.
func BenchmarkIntake(b *testing.B) {
	in := newIntake(Options{WaitBytes: 1 << 40, WaitRequests: 1 << 30})
	in.open()
	requests := make([]*Request, groupRecords)
	for i := range requests {
		requests[i] = &Request{}
		*requests[i].One() = Record{Bytes: make([]byte, 128)}
	}
	b.ReportAllocs()
	for i := 0; i < b.N; i++ {
		if i%groupRecords == 0 {
			in.takeAll()
		}
		if err := in.put(requests[i%groupRecords]); err != nil {
			b.Fatal(err)
		}
	}
}

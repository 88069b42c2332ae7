package main

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// BenchmarkSend is one message from SendAsync to its acknowledgement, in process,
// for profiles: go test -run '^$' -bench Send/PocketMQ -cpuprofile cpu.out.
func BenchmarkSend(b *testing.B) {
	for _, v := range []variant{pocketSync, pocketAsync, pocketSyncBatch, jetStream} {
		for _, size := range []int{128, 1024} {
			b.Run(fmt.Sprintf("%s/%d", v.name, size), func(b *testing.B) {
				ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
				defer cancel()
				s, err := v.open(ctx, b.TempDir(), false, newBodies(size))
				if err != nil {
					b.Fatal(err)
				}
				if err := fill(ctx, s, 1000); err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				b.ResetTimer()
				cpu := processTime()
				if err := fill(ctx, s, b.N); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				reportCPU(b, cpu.Nanoseconds())
				if err := s.close(); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}

// BenchmarkConsume is one message of a backlog, in process.
func BenchmarkConsume(b *testing.B) {
	for _, v := range []variant{pocketSync, jetStream} {
		for _, size := range []int{128, 1024} {
			b.Run(fmt.Sprintf("%s/%d", v.name, size), func(b *testing.B) {
				ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
				defer cancel()
				s, err := v.open(ctx, b.TempDir(), false, newBodies(size))
				if err != nil {
					b.Fatal(err)
				}
				if err := fill(ctx, s, b.N); err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				b.ResetTimer()
				cpu := processTime()
				if err := s.consume(ctx, b.N); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				reportCPU(b, cpu.Nanoseconds())
				if err := s.close(); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}

func reportCPU(b *testing.B, before int64) {
	b.ReportMetric(float64(processTime().Nanoseconds()-before)/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

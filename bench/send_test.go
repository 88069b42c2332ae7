package main

import (
	"fmt"
	"testing"
)

// BenchmarkSend is one message from SendAsync to its acknowledgement, in process,
// for profiles: go test -run '^$' -bench Send/PocketMQ -cpuprofile cpu.out.
func BenchmarkSend(b *testing.B) {
	for _, v := range []variant{pocketSync, pocketAsync, jetStream} {
		for _, size := range []int{128, 1024} {
			b.Run(fmt.Sprintf("%s/%d", v.name, size), func(b *testing.B) {
				s, err := v.open(b.Context(), b.TempDir(), false)
				if err != nil {
					b.Fatal(err)
				}
				body := make([]byte, size)
				if err := fill(b.Context(), s, 1000, body); err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				b.ResetTimer()
				cpu := processTime()
				if err := fill(b.Context(), s, b.N, body); err != nil {
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
				s, err := v.open(b.Context(), b.TempDir(), false)
				if err != nil {
					b.Fatal(err)
				}
				if err := fill(b.Context(), s, b.N, make([]byte, size)); err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				b.ResetTimer()
				cpu := processTime()
				if err := s.consume(b.Context(), b.N); err != nil {
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

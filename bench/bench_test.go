package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"
)

// Every scenario runs for a moment and leaves nothing behind.
func TestScenarios(t *testing.T) {
	for _, sc := range scenarios(500) {
		t.Run(sc.name, func(t *testing.T) {
			dir := t.TempDir()
			results, err := sc.compare(t.Context(), dir, 1, 20*time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			for i, s := range results {
				if len(s) != 1 || s[0].messages == 0 || s[0].elapsed <= 0 {
					t.Errorf("%s: samples %v", sc.variants[i].name, s)
				}
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("%d directories are left, %v", len(left), err)
			}
		})
	}
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	o := options{seconds: 0.02, rounds: 2, backlog: 2000, only: "process/1024 B/(consume|cold)", dir: t.TempDir()}
	if err := run(t.Context(), o, &out); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, want := range []string{"| in process | 1024 B | consume | PocketMQ sync |", "| consume | JetStream |", "×**", "beside a cold consumer"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "TCP") {
		t.Errorf("what -only leaves out was run:\n%s", text)
	}
}

func TestFailedScenariosSayWhich(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := scenarios(10)[0].compare(ctx, t.TempDir(), 1, time.Millisecond)
	if err == nil || !strings.HasPrefix(err.Error(), "in process/128 B/send, 1 waiting, PocketMQ sync: ") {
		t.Errorf("got %v", err)
	}
}

func TestMediansAndRatios(t *testing.T) {
	at := func(messages ...int) (s series) {
		for _, n := range messages {
			s = append(s, sample{messages: n, elapsed: time.Second})
		}
		return s
	}
	if m := at(30, 10, 20).median(sample.rate); m != 20 {
		t.Errorf("the median of 30, 10, 20 is %v", m)
	}
	if m := at(30, 10).median(sample.rate); m != 20 {
		t.Errorf("the median of 30, 10 is %v", m)
	}
	if r := ratio(at(30, 10, 80), at(10, 10, 20)); r != 3 {
		t.Errorf("the ratio is %v, want the median of 3, 1 and 4", r)
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := thousands(n); got != want {
			t.Errorf("%d is written %s", n, got)
		}
	}
}

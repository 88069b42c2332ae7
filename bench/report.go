package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// print writes a scenario's lines of the table; the last variant is the one that
// the others are compared with.
func (sc scenario) print(out io.Writer, results []series) {
	names := strings.Split(sc.name, "/")
	peer := results[len(results)-1]
	for i, s := range results {
		of := ""
		if i < len(results)-1 {
			of = fmt.Sprintf("**%.2f ×**", ratio(s, peer))
		}
		rate := s.median(sample.rate)
		cpu := time.Duration(s.median(func(s sample) float64 { return float64(s.cpuEach()) }))
		fmt.Fprintf(out, "| %s | %s | %s | %s | %s | %v | %s |\n", names[0], names[1], names[2], sc.variants[i].name,
			thousands(int(rate)), cpu.Round(10*time.Nanosecond), of)
	}
}

// thousands writes a number with commas.
func thousands(n int) string {
	text := strconv.Itoa(n)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

package transport

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestBatchKeepsBytesInOrder gathers frames of all sizes and compares what the
// pieces say with a plain concatenation; used batches are used again.
func TestBatchKeepsBytesInOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	var b batch
	for range 200 {
		var want []byte
		for range random.IntN(30) {
			sizes := []int{0, 1, 200, copyBelow, copyBelow + 1, chunkSize - 1, chunkSize, chunkSize + 1}
			head := make([]byte, 8+sizes[random.IntN(len(sizes))])
			body := make([]byte, sizes[random.IntN(len(sizes))])
			for _, p := range [][]byte{head, body} {
				for i := range p {
					p[i] = byte(random.Uint32())
				}
			}
			b.frame(head, body)
			want = append(append(want, head...), body...)
			clear(head) // heads are lent
		}
		if got := slices.Concat(b.pieces...); !bytes.Equal(got, want) {
			t.Fatalf("%d bytes came out as %d others", len(want), len(got))
		}
		b.reset()
	}
}

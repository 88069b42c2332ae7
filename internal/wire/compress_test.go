package wire

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
)

var compressionKinds = map[string]int32{"zlib": SysCompressionZlib, "lz4": SysCompressionLZ4, "zstd": SysCompressionZstd}

func TestCompressedBodiesComeBack(t *testing.T) {
	for name, kind := range compressionKinds {
		for _, size := range []int{1000, 4095, 4096, 4097, 1 << 20, MaxBodyBytes} {
			body := bytes.Repeat([]byte("abcdefgh"), size/8+1)[:size]
			for range 2 { // the second time with pooled state
				packed, flags, err := Compress(body, kind)
				if err != nil || flags != SysCompressed|kind || len(packed) >= size {
					t.Fatalf("%s of %d bytes: %d bytes, flags %#x, %v", name, size, len(packed), flags, err)
				}
				plain, err := Decompress(packed, flags, size)
				if err != nil || !bytes.Equal(plain, body) {
					t.Fatalf("%s of %d bytes: %d bytes come back, %v", name, size, len(plain), err)
				}
			}
		}
	}
}

func TestFlagsSayCompressedOnlyWhenItIs(t *testing.T) {
	random := rand.NewChaCha8([32]byte{1})
	noise := make([]byte, 8192)
	if _, err := random.Read(noise); err != nil {
		t.Fatal(err)
	}
	for name, kind := range compressionKinds {
		for _, body := range [][]byte{noise, nil, []byte("x")} {
			packed, flags, err := Compress(body, kind)
			if err != nil || flags != 0 || !bytes.Equal(packed, body) {
				t.Errorf("%s: %d bytes that cannot shrink: flags %#x, %v", name, len(body), flags, err)
			}
			plain, err := Decompress(packed, flags, 0)
			if err != nil || !bytes.Equal(plain, body) {
				t.Errorf("%s: a plain body does not come back: %v", name, err)
			}
		}
	}
	if _, _, err := Compress(noise, 0x400); err == nil {
		t.Error("an unknown type is accepted")
	}
}

func TestOldPeersZlibIsReadWithoutType(t *testing.T) {
	body := make([]byte, 5000)
	packed, _, err := Compress(body, 0)
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := Decompress(packed, SysCompressed, 5000); err != nil || !bytes.Equal(plain, body) {
		t.Errorf("%d bytes, %v", len(plain), err)
	}
}

func TestDecompressionStopsAtTheLimit(t *testing.T) {
	bomb := make([]byte, 16<<20)
	for name, kind := range compressionKinds {
		packed, flags, err := Compress(bomb, kind)
		if err != nil {
			t.Fatal(err)
		}
		for _, limit := range []int{0, 100, len(bomb) - 1} {
			if _, err := Decompress(packed, flags, limit); !errors.Is(err, ErrTooLarge) {
				t.Errorf("%s with limit %d: %v", name, limit, err)
			}
		}
	}
}

func TestDamagedCompressedBodiesAreRefused(t *testing.T) {
	body := bytes.Repeat([]byte("some text "), 1000)
	for name, kind := range compressionKinds {
		packed, flags, err := Compress(body, kind)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{1, 3, len(packed) / 2, len(packed) - 1} {
			if plain, err := Decompress(packed[:n], flags, MaxBodyBytes); !errors.Is(err, ErrMalformed) {
				t.Errorf("%s: the first %d of %d bytes give %d, %v", name, n, len(packed), len(plain), err)
			}
		}
		if _, err := Decompress([]byte("no compressed bytes"), flags, MaxBodyBytes); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: plain text decompresses: %v", name, err)
		}
	}
	if _, err := Decompress(body, SysCompressed|0x400, MaxBodyBytes); !errors.Is(err, ErrMalformed) {
		t.Errorf("an unknown type decompresses: %v", err)
	}
}

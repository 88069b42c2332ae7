package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

const zlibLevel = 5 // RocketMQ's default

// ErrTooLarge says that a body does not fit the limit when it is decompressed.
var ErrTooLarge = errors.New("wire: decompressed body exceeds the limit")

// Pooled are only zlib's writers and readers, which are large and plain memory.
// The zstd types hold channels, which must not outlive the bubble of a test.
var (
	zlibWriters sync.Pool
	zlibReaders sync.Pool
)

// Compress compresses a body with one of the types SysCompressionZlib, …LZ4 and
// …Zstd. It returns the bytes and the system flag bits that describe them: when
// compression gains nothing these are the body itself and no bits.
func Compress(body []byte, kind int32) ([]byte, int32, error) {
	var buf bytes.Buffer
	var err error
	switch kind {
	case 0, SysCompressionZlib:
		kind, err = SysCompressionZlib, compressZlib(&buf, body)
	case SysCompressionLZ4:
		w := lz4.NewWriter(&buf)
		if err = w.Apply(lz4.BlockSizeOption(lz4.Block256Kb)); err == nil {
			err = writeAll(w, body)
		}
	case SysCompressionZstd:
		var w *zstd.Encoder
		if w, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true)); err == nil {
			buf = *bytes.NewBuffer(w.EncodeAll(body, nil))
			err = w.Close()
		}
	default:
		return nil, 0, fmt.Errorf("wire: unknown compression type %#x", kind)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("wire: compress with type %#x: %w", kind, err)
	}
	if buf.Len() >= len(body) {
		return body, 0, nil
	}
	return buf.Bytes(), SysCompressed | kind, nil
}

func compressZlib(dst io.Writer, body []byte) error {
	w, ok := zlibWriters.Get().(*zlib.Writer)
	if ok {
		w.Reset(dst)
	} else {
		var err error
		if w, err = zlib.NewWriterLevel(dst, zlibLevel); err != nil {
			return err
		}
	}
	err := writeAll(w, body)
	w.Reset(io.Discard) // the pool must not keep the caller's buffer
	zlibWriters.Put(w)
	return err
}

func writeAll(w io.WriteCloser, body []byte) error {
	_, err := w.Write(body)
	return errors.Join(err, w.Close())
}

// Decompress is the plain form of a body that is compressed as sysFlag says: the
// body itself when it is not compressed at all. It fails with ErrTooLarge when
// the result would exceed limit bytes, and until then holds no more than about
// twice what was decompressed so far, plus the codec's own windows.
func Decompress(body []byte, sysFlag int32, limit int) ([]byte, error) {
	if sysFlag&SysCompressed == 0 {
		return body, nil
	}
	switch kind := sysFlag & SysCompressionMask; kind {
	case 0, SysCompressionZlib:
		return decompressZlib(body, limit)
	case SysCompressionLZ4:
		return readLimited(lz4.NewReader(bytes.NewReader(body)), len(body), limit)
	case SysCompressionZstd:
		window := uint64(max(limit, zstd.MinWindowSize, zstdWindow))
		r, err := zstd.NewReader(bytes.NewReader(body), zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(window))
		if err != nil {
			return nil, malformed("compressed body: %v", err)
		}
		defer r.Close()
		return readLimited(r, len(body), limit)
	default:
		return nil, malformed("compressed body of the unknown type %#x", kind)
	}
}

// zstdWindow is the largest window that every zstd decoder should accept.
const zstdWindow = 8 << 20

func decompressZlib(body []byte, limit int) ([]byte, error) {
	src := bytes.NewReader(body)
	r, ok := zlibReaders.Get().(io.ReadCloser)
	var err error
	if ok {
		err = r.(zlib.Resetter).Reset(src, nil)
	} else {
		r, err = zlib.NewReader(src)
	}
	if err != nil {
		return nil, malformed("compressed body: %v", err)
	}
	plain, err := readLimited(r, len(body), limit)
	if err == nil {
		zlibReaders.Put(r)
	}
	return plain, err
}

// readLimited reads all of r. Its buffer starts at a size that compressed bytes
// usually deserve and doubles only when that much was really there.
func readLimited(r io.Reader, compressed, limit int) ([]byte, error) {
	buf := make([]byte, 0, min(max(4*compressed, 512), limit+1))
	for {
		if len(buf) > limit {
			return nil, fmt.Errorf("%w of %d bytes", ErrTooLarge, limit)
		}
		if len(buf) == cap(buf) {
			grown := make([]byte, len(buf), min(2*cap(buf)+1, limit+1))
			copy(grown, buf)
			buf = grown
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err == io.EOF {
			if len(buf) > limit {
				return nil, fmt.Errorf("%w of %d bytes", ErrTooLarge, limit)
			}
			return buf, nil
		}
		if err != nil {
			return nil, malformed("compressed body: %v", err)
		}
	}
}

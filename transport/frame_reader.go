package transport

import (
	"errors"
	"io"
)

// Sizes of the reader's buffer and of what it allocates on a mere promise.
const (
	minReadBuffer = 4 << 10
	maxReadBuffer = 64 << 10
	firstPiece    = 256 << 10
)

// A frameReader cuts a stream into frames. Its buffer grows with traffic up to
// 64 KiB. Memory for a body is made as its bytes arrive, so that an announced
// length alone pins at most 256 KiB, and nothing is shared between frames.
type frameReader struct {
	src      io.Reader
	buf      []byte
	from, to int // the unread part of buf
	maxFrame int
}

// next reads one frame into e. An io.EOF means the stream ended between frames.
func (r *frameReader) next(e *envelope, accord *accord) error {
	if err := r.ensure(prefixSize); err != nil {
		if have := r.buf[r.from:r.to]; len(have) >= 2 && hint(have) != "" {
			return malformed("%d bytes and the end%s", len(have), hint(have))
		}
		return err
	}
	p, err := parsePrefix(r.buf[r.from:r.to], r.maxFrame, accord.mayRead.Load())
	if err != nil {
		return err
	}
	r.from += prefixSize
	header, err := r.header(p.header)
	if err != nil {
		return err
	}
	if err := parseHeader(&e.Frame, p.codec, header); err != nil {
		return err
	}
	e.Body, err = r.read(p.body)
	e.size = int64(prefixSize + p.header + p.body)
	return err
}

// header returns n bytes, valid until the next read, and passes over them.
func (r *frameReader) header(n int) ([]byte, error) {
	if n > maxReadBuffer {
		return r.read(n)
	}
	if err := r.ensure(n); err != nil {
		return nil, truncated(err)
	}
	b := r.buf[r.from : r.from+n]
	r.from += n
	return b, nil
}

// truncated says that the stream ended inside a frame.
func truncated(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// ensure makes at least n bytes available in the buffer.
func (r *frameReader) ensure(n int) error {
	if r.to-r.from >= n {
		return nil
	}
	size := len(r.buf)
	switch {
	case size == 0:
		size = minReadBuffer
	case r.to == len(r.buf) && size < maxReadBuffer:
		size *= 2 // the last read filled it: there is traffic
	}
	for size < n {
		size *= 2
	}
	if size != len(r.buf) {
		grown := make([]byte, size)
		r.to = copy(grown, r.buf[r.from:r.to])
		r.buf, r.from = grown, 0
	} else if r.from > 0 {
		r.to = copy(r.buf, r.buf[r.from:r.to])
		r.from = 0
	}
	for r.to-r.from < n {
		k, err := r.src.Read(r.buf[r.to:])
		r.to += k
		if err != nil && r.to-r.from < n {
			if r.to > r.from {
				return truncated(err)
			}
			return err
		}
	}
	return nil
}

// read returns n bytes in memory of their own.
func (r *frameReader) read(n int) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	b := make([]byte, min(n, firstPiece))
	have := copy(b, r.buf[r.from:r.to])
	r.from += have
	for {
		k, err := io.ReadFull(r.src, b[have:])
		if have += k; err != nil {
			return nil, truncated(err)
		}
		if have == n {
			return b, nil
		}
		grown := make([]byte, min(n, 4*have))
		copy(grown, b)
		b = grown
	}
}

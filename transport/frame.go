package transport

import "errors"

func appendFrame(dst []byte, f *Frame, s stamp, maxFrame int) ([]byte, error) {
	return nil, errors.New("x")
}
func parseFrame(f *Frame, b []byte, maxFrame int, msgpack bool) error { return errors.New("x") }

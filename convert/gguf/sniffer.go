package gguf

import (
	"fmt"
	"io"
)

// Options configure reading a header. The zero value works.
type Options struct {
	// Size is the size of the file in bytes, zero if unknown. If it is known, tensors must fit into
	// it.
	Size int64

	// Tensor, if not nil, is called for each tensor of the header, even of one that turns out
	// invalid, with the start of its data in bytes from DataOffset.
	Tensor func(off int64)
}

// A Sniffer reads the header of a file whose bytes are written to it in order. It is not safe for
// concurrent use.
type Sniffer struct {
	d   *decoder // nil when it is done
	h   *Header
	err error
}

// NewSniffer returns a Sniffer for one file.
func NewSniffer(o Options) *Sniffer { return &Sniffer{d: newDecoder(o)} }

// Write receives the next bytes of the file. It returns len(p) and nil for any bytes: an invalid
// header must not stop a copy of the file.
func (s *Sniffer) Write(p []byte) (int, error) {
	if s.d == nil {
		return len(p), nil
	}
	if err := s.d.write(p); err != nil {
		s.d, s.err = nil, err
	} else if s.d.next == nil {
		s.h, s.d = s.d.h, nil
	}
	return len(p), nil
}

// Done reports whether Header is final: the header is complete, invalid or too large.
func (s *Sniffer) Done() bool { return s.d == nil }

// Header returns the header. It returns errdefs.ErrInvalidArgument if the file has no valid one,
// and io.ErrUnexpectedEOF as long as it is incomplete.
func (s *Sniffer) Header() (*Header, error) {
	if s.d != nil {
		return nil, fmt.Errorf("GGUF header: %w", io.ErrUnexpectedEOF)
	}
	return s.h, s.err
}

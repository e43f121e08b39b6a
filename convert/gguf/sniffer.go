package gguf

import (
	"fmt"
	"io"
)

// Options say what is known of a file. The zero value says nothing and takes the limits of this
// package.
type Options struct {
	// Size is the size of the file in bytes, zero if it is not known. If it is, tensors have to
	// fit into it.
	Size int64

	// Limit is the size in bytes that a header can have, zero for MaxHeader, which is also the
	// most.
	Limit int64

	// Tensor, if not nil, is called for each tensor of the header, also of one that turns out wrong,
	// with where its data starts, in bytes from DataOffset.
	Tensor func(off int64)
}

// A Sniffer reads the header of a file whose bytes are written to it, from the first on. It is for
// one goroutine at a time.
type Sniffer struct {
	d   *decoder // nil when it is done
	h   *Header
	err error
}

// NewSniffer returns a Sniffer for one file.
func NewSniffer(o Options) *Sniffer { return &Sniffer{d: newDecoder(o)} }

// Write takes the next bytes of the file. It returns len(p) and nil, whatever they are: those who
// copy a file must not stop for its header.
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

// Done reports whether nothing that is still to come can change Header: the header is complete, or
// it is wrong, or too large.
func (s *Sniffer) Done() bool { return s.d == nil }

// Header returns the header. It returns errdefs.ErrInvalidArgument if the file has none that is
// right, and io.ErrUnexpectedEOF as long as it is not complete.
func (s *Sniffer) Header() (*Header, error) {
	if s.d != nil {
		return nil, fmt.Errorf("GGUF header: %w", io.ErrUnexpectedEOF)
	}
	return s.h, s.err
}

// pieceSize is how much of a file is read at a time, in bytes: r may be far away.
const pieceSize = 256 << 10 // 256 KiB

// Read reads the header of a file from r, and up to 256 KiB beyond it. It returns
// errdefs.ErrInvalidArgument for a header that is wrong or too large, io.ErrUnexpectedEOF if r ends
// in it, and the errors of r.
func Read(r io.Reader, o Options) (*Header, error) {
	s := NewSniffer(o)
	p := make([]byte, min(s.d.limit, pieceSize))
	for !s.Done() {
		n, err := r.Read(p)
		_, _ = s.Write(p[:n]) // fails never
		if err == io.EOF {
			break
		}
		if err != nil && !s.Done() {
			return nil, fmt.Errorf("GGUF header: %w", err)
		}
	}
	return s.Header()
}

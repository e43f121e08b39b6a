package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// Options configure reading a header. The zero value works.
type Options struct {
	// Size is the size of the file in bytes, zero if unknown. If it is known, the tensors must end
	// at the end of the file.
	Size int64
}

// SniffLimit is the limit of a header for a Sniffer, in bytes; Read has MaxHeader. A header of this size has
// some 70,000 tensors; files of the largest models have some thousands each.
const SniffLimit = 8 << 20 // 8 MiB

// A Sniffer reads the header of a file whose bytes are written to it in order. It holds the header
// until it is complete. It is not safe for concurrent use.
type Sniffer struct {
	size  int64
	limit uint64
	buf   []byte
	need  uint64 // bytes of the length and the header, as far as known
	done  bool
	h     *Header
	err   error
}

// NewSniffer returns a Sniffer for one file.
func NewSniffer(o Options) *Sniffer { return newSniffer(o, SniffLimit) }

func newSniffer(o Options, limit uint64) *Sniffer {
	return &Sniffer{size: o.Size, limit: limit, need: lengthSize}
}

// Write receives the next bytes of the file. It returns len(p) and nil for any bytes: an invalid
// header must not stop a copy of the file.
func (s *Sniffer) Write(p []byte) (int, error) {
	n := len(p)
	for !s.done {
		take := min(uint64(len(p)), s.need-uint64(len(s.buf)))
		s.grow(int(take))
		s.buf = append(s.buf, p[:take]...)
		p = p[take:]
		if uint64(len(s.buf)) < s.need {
			return n, nil
		}
		if err := s.step(); err != nil {
			s.finish(nil, invalid(err))
		}
	}
	return n, nil
}

// grow reserves space for n more bytes, doubling the buffer, but not more than needed.
func (s *Sniffer) grow(n int) {
	if have := len(s.buf); have+n > cap(s.buf) {
		s.buf = append(make([]byte, 0, min(int(s.need), 2*have+n)), s.buf...)
	}
}

// step processes the bytes needed: the length, or the header.
func (s *Sniffer) step() error {
	if s.need == lengthSize {
		n := binary.LittleEndian.Uint64(s.buf)
		switch {
		case n > s.limit:
			return fmt.Errorf("%d bytes, more than %d", n, s.limit)
		case s.size > 0 && n > uint64(max(s.size-lengthSize, 0)):
			return fmt.Errorf("%d bytes, in a file of %d", n, s.size)
		case n == 0:
			return errors.New("no bytes")
		}
		s.need += n
		return nil
	}
	h, err := parse(s.buf[lengthSize:])
	if err != nil {
		return err
	}
	h.DataOffset = int64(s.need)
	if h.DataSize > math.MaxInt64-h.DataOffset {
		return fmt.Errorf("%d bytes of tensors", h.DataSize)
	}
	if end := h.DataOffset + h.DataSize; s.size > 0 && end != s.size {
		return fmt.Errorf("tensors end at %d, the file at %d", end, s.size)
	}
	s.finish(h, nil)
	return nil
}

func (s *Sniffer) finish(h *Header, err error) {
	s.h, s.err = h, err
	s.done, s.buf = true, nil
}

// Done reports whether Header is final: the header is complete, invalid or too large.
func (s *Sniffer) Done() bool { return s.done }

// Header returns the header. It returns errdefs.ErrInvalidArgument if the file has no valid one,
// and io.ErrUnexpectedEOF as long as it is incomplete. A caller that keeps headers of many files
// should keep their Summary.
func (s *Sniffer) Header() (*Header, error) {
	if !s.done {
		return nil, fmt.Errorf("safetensors header: %w", io.ErrUnexpectedEOF)
	}
	return s.h, s.err
}

// Read reads the header of a file from its start. It returns errdefs.ErrInvalidArgument for a header
// that is invalid or too large, and io.ErrUnexpectedEOF if p ends in it.
func Read(p []byte, o Options) (*Header, error) {
	s := newSniffer(o, MaxHeader)
	_, _ = s.Write(p) // never fails
	return s.Header()
}

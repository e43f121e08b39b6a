package object

import (
	"bytes"
	"fmt"
	"io"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A flaky disk fails, or returns wrong bytes, in the first reads.
type flaky struct {
	io.ReaderAt
	bad int
	err error // nil: wrong bytes
}

func (f *flaky) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.ReaderAt.ReadAt(p, off)
	if f.bad--; f.bad < 0 {
		return n, err
	}
	if f.err != nil {
		return 0, f.err
	}
	p[0] ^= 1
	return n, err
}

// TestOneBadReadIsNoVerdict checks that wrong or unreadable bytes are read again before the object is
// set aside.
func TestOneBadReadIsNoVerdict(t *testing.T) {
	p := bytes.Repeat([]byte("x"), 1000)
	eio := fmt.Errorf("read: %w", syscall.EIO)
	for _, tt := range []struct {
		name string
		disk flaky
		want func(error) bool
	}{
		{"intact", flaky{}, func(err error) bool { return err == nil }},
		{"one error", flaky{bad: 1, err: eio}, func(err error) bool { return err == nil }},
		{"wrong once", flaky{bad: 1}, func(err error) bool { return err == nil }},
		{"errors", flaky{bad: 2, err: eio}, isDamage},
		{"wrong", flaky{bad: 2}, errdefs.IsDataLoss},
		{"another error", flaky{bad: 1, err: syscall.ENOMEM}, func(err error) bool { return err != nil && !isDamage(err) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tt.disk.ReaderAt = bytes.NewReader(p)
				if err := hashAgain(t.Context(), &tt.disk, digest.FromBytes(p), int64(len(p)), nil); !tt.want(err) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

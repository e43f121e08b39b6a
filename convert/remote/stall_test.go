package remote

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
)

// A drip is a body that returns a piece at regular intervals, until ctx ends.
type drip struct {
	ctx   context.Context
	size  int64 // left
	piece int
	every time.Duration
	here  int // of a piece
}

func (d *drip) Read(p []byte) (int, error) {
	if d.size <= 0 {
		return 0, io.EOF
	}
	if d.here == 0 {
		select {
		case <-time.After(d.every):
		case <-d.ctx.Done():
			return 0, d.ctx.Err()
		}
		d.here = int(min(int64(d.piece), d.size))
	}
	n := min(d.here, len(p))
	d.here -= n
	d.size -= int64(n)
	return n, nil
}

func (d *drip) Close() error { return nil }

// TestStallRate checks that a body below the minimal rate ends with an error, and that a body with its
// share of a slow link does not.
func TestStallRate(t *testing.T) {
	const size = 1 << 20
	tests := []struct {
		name  string
		piece int
		every time.Duration
		ok    bool
	}{
		{"a byte a second", 1, time.Second, false},
		{"2 KiB in ten seconds", 2 << 10, 10 * time.Second, false},
		{"half of the minimal rate", 512, time.Second, false},
		{"twice the minimal rate", 2 << 10, time.Second, true},
		{"a 24th of 56 KiB/s, a packet at a time", 1448, 24 * 1448 * time.Second / (56 << 10), true},
		{"a 24th of 56 KiB/s, in large pieces", 56 << 10, 24 * time.Second, true},
		{"all of 56 KiB/s", 1448, 1448 * time.Second / (56 << 10), true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				b := newStallBody(t.Context(), &drip{ctx: ctx, size: size, piece: test.piece, every: test.every}, defaultStall, cancel, false)
				start := time.Now()
				n, err := io.Copy(io.Discard, b)
				b.Close()
				switch {
				case test.ok && (err != nil || n != size):
					t.Errorf("given up after %d bytes: %v", n, err)
				case !test.ok && (!errdefs.IsUnavailable(err) || errors.Is(err, context.Canceled)):
					t.Errorf("got %v after %v, want unavailable", err, time.Since(start))
				case !test.ok && time.Since(start) > 2*defaultStall:
					t.Errorf("given up after %v", time.Since(start))
				}
			})
		})
	}
}

// TestPausesOfReader checks that pauses between reads do not count.
func TestPausesOfReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		b := newStallBody(t.Context(), &drip{ctx: ctx, size: 20, piece: 1, every: time.Second}, defaultStall, cancel, false)
		p := make([]byte, 1)
		for range 20 {
			if _, err := b.Read(p); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * defaultStall)
		}
		b.Close()
	})
}

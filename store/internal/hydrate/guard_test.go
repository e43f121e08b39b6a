package hydrate

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// TestCopyHoles copies files with zeros in all places, by small reads.
func TestCopyHoles(t *testing.T) {
	const block = holeBlock
	x := func(n int) []byte { return bytes.Repeat([]byte("x"), n) }
	zeros := func(n int) []byte { return make([]byte, n) }
	for name, tt := range map[string]struct {
		content []byte
		holes   int64
	}{
		"nothing":                      {nil, 0},
		"no zeros":                     {x(3*block + 5), 0},
		"zeros only":                   {zeros(2*block + 5), 2*block + 5},
		"zeros at the beginning":       {append(zeros(block), x(9)...), block},
		"zeros at the end":             {append(x(9), zeros(2*block)...), block + 9},
		"zeros that are no block":      {append(append(x(1), zeros(2*block-2)...), x(1)...), 0},
		"a block of zeros in between":  {append(append(x(block), zeros(block)...), x(block)...), block},
		"zeros, each with a character": {bytes.Repeat(append(zeros(4095), 'x'), 64), 0},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := os.Create(filepath.Join(t.TempDir(), "f"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			hash := verify.NewHash()
			var holes int64
			err = copyHoles(f, hash, iotest.HalfReader(bytes.NewReader(tt.content)), make([]byte, 2*block), &holes)
			if err != nil || holes != tt.holes {
				t.Errorf("%d bytes of holes, %v; want %d", holes, err, tt.holes)
			}
			got, err := os.ReadFile(f.Name())
			if err != nil || !bytes.Equal(got, tt.content) {
				t.Errorf("%d bytes are other ones than %d: %v", len(got), len(tt.content), err)
			}
			if d := hash.Digest(); d != digest.FromBytes(tt.content) {
				t.Errorf("digest %s", d)
			}
			var st unix.Stat_t
			if err := unix.Fstat(int(f.Fd()), &st); err != nil {
				t.Fatal(err)
			}
			if n := st.Blocks * 512; n > int64(len(tt.content))-tt.holes+4096 { // a block is allocated for a part of it
				t.Errorf("%d bytes on disk for %d, of which %d are holes", n, len(tt.content), tt.holes)
			}
		})
	}
	broken := io.MultiReader(bytes.NewReader(x(5)), iotest.ErrReader(io.ErrUnexpectedEOF))
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := copyHoles(f, verify.NewHash(), broken, make([]byte, block), new(int64)); err != io.ErrUnexpectedEOF {
		t.Errorf("got %v", err)
	}
}

// disk has room for some bytes, and a quota.
type disk struct {
	Objects
	room, quota int64
}

func (d disk) Room(n int64) error {
	if n > d.room {
		return errdefs.ErrResourceExhausted
	}
	return nil
}

func (d disk) Fits(n int64) error {
	if n > d.quota {
		return errdefs.ErrResourceExhausted
	}
	return nil
}

// endless yields bytes that are not looked at.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// TestBombGuard reads archives without end, of data and of zeros.
func TestBombGuard(t *testing.T) {
	const mib = 1 << 20
	buf := make([]byte, mib)
	for name, tt := range map[string]struct {
		disk  disk
		zeros bool
		want  int64 // bytes that can be read
		err   error
		text  string
	}{
		"data":                {disk{}, false, 1<<30 + 100*mib, errdefs.ErrInvalidArgument, "more than 1 GiB and 100 times its size, without zeros"},
		"zeros":               {disk{room: 1 << 50, quota: 1 << 50}, true, 2<<30 + 1100*mib, errdefs.ErrInvalidArgument, "more than 2 GiB and 1100 times its size, the limit"},
		"zeros on small disk": {disk{room: 2 << 30, quota: 1 << 50}, true, 2<<30 + 64*mib, errdefs.ErrResourceExhausted, "does not fit"},
		"zeros above quota":   {disk{room: 1 << 50, quota: 2 << 30}, true, 2<<30 + 256*mib, errdefs.ErrResourceExhausted, "does not fit"},
	} {
		g := &bombGuard{r: endless{}, objects: tt.disk, size: mib, all: new(atomic.Int64), sum: new(atomic.Int64), aborted: new(atomic.Bool)}
		var err error
		for err == nil {
			var n int
			if n, err = g.Read(buf); tt.zeros {
				g.holes += int64(n)
			}
		}
		if !errors.Is(err, tt.err) || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: got %v", name, err)
		}
		if all := g.all.Load(); all < tt.want-256*mib || all > tt.want+2*mib {
			t.Errorf("%s: ended after %d MiB, want %d", name, all/mib, tt.want/mib)
		}
	}
	g := &bombGuard{r: endless{}, all: new(atomic.Int64), sum: new(atomic.Int64), aborted: new(atomic.Bool)}
	g.aborted.Store(true)
	if n, err := g.Read(buf); n > 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("aborted: %d bytes, %v", n, err)
	}
}

package transfer

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A pieceServer serves a blob and records the ranges that it is asked for.
type pieceServer struct {
	blob  []byte
	every time.Duration // between reads
	fail  func(call int) error

	mu    sync.Mutex // guards the following
	asked []string
}

func (s *pieceServer) Fetch(ctx context.Context, _ digest.Digest, _, off, n int64) (io.ReadCloser, int64, error) {
	s.mu.Lock()
	s.asked = append(s.asked, fmt.Sprintf("%d-%d", off, off+n))
	call := len(s.asked)
	s.mu.Unlock()
	if s.fail != nil {
		if err := s.fail(call); err != nil {
			return nil, 0, err
		}
	}
	return &pieceBody{ctx, bytes.NewReader(s.blob[off : off+n]), s.every}, off, nil
}

type pieceBody struct {
	ctx   context.Context
	r     *bytes.Reader
	every time.Duration
}

func (b *pieceBody) Close() error { return nil }

func (b *pieceBody) Read(p []byte) (int, error) {
	select {
	case <-time.After(b.every):
		return b.r.Read(p[:min(len(p), 1<<10)])
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
}

// pieced returns a Fetch of blob from a mirror that is asked for pieces of 16 KiB, and an origin.
func pieced(mirror *pieceServer, origin *pieceServer) Fetch {
	var from Sources
	list := []Source{{Name: "a/b", Endpoint: &Endpoint{Name: "mirror", Mirror: true, Piece: 16 << 10, Patience: 5 * time.Second, Counts: &Counts{}}, Fetcher: mirror}}
	if origin != nil {
		list = append(list, Source{Name: "a/b", Fetcher: origin})
	}
	from.Set("a", list)
	s := schedule()
	return Fetch{Scheduler: s, Size: int64(len(mirror.blob)), From: &from, Flow: s.NewFlow(Soon), Received: new(atomic.Int64)}
}

func randomBlob(n int) []byte {
	p := make([]byte, n)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

// TestPieces checks that ranges of a piece share one request for the whole piece.
func TestPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &pieceServer{blob: randomBlob(40 << 10), every: time.Millisecond}
		f := pieced(s, nil)
		got := make([]byte, len(s.blob))
		var g sync.WaitGroup
		for off := int64(0); off < f.Size; off += 4 << 10 {
			g.Go(func() {
				if _, err := f.Range(t.Context(), nil, got[off:off+4<<10], off); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait() // in order
		}
		g.Wait()
		if !bytes.Equal(got, s.blob) {
			t.Error("wrong bytes")
		}
		if want := "[0-16384 16384-32768 32768-40960]"; fmt.Sprint(s.asked) != want {
			t.Errorf("asked for %v, want %s", s.asked, want)
		}
		if n := inUse(f.Scheduler.Places); n != 0 || len(f.Scheduler.pieces.readers) != 0 {
			t.Errorf("%d places and %d readers are left", n, len(f.Scheduler.pieces.readers))
		}
		if n := f.Received.Load(); n != f.Size {
			t.Errorf("%d bytes received, want %d", n, f.Size)
		}
	})
}

// TestPiecesAtRandom fetches random ranges, some of which are cancelled, from a mirror that sometimes fails.
func TestPiecesAtRandom(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			blob := randomBlob(100_000)
			s := &pieceServer{blob: blob, every: time.Millisecond}
			s.fail = func(call int) error {
				switch call % 7 {
				case 3:
					return errdefs.ErrNotFound
				case 5:
					return errdefs.ErrUnavailable
				}
				return nil
			}
			f := pieced(s, &pieceServer{blob: blob, every: 2 * time.Millisecond})
			r := rand.New(rand.NewPCG(seed, 1))
			var g sync.WaitGroup
			for range 60 {
				off := r.Int64N(int64(len(blob)))
				n := 1 + r.Int64N(min(24<<10, int64(len(blob))-off))
				ctx, cancel := context.WithCancel(t.Context())
				if r.IntN(3) == 0 {
					time.AfterFunc(time.Duration(r.IntN(30))*time.Millisecond, cancel)
				}
				pause := time.Duration(r.IntN(40)) * time.Millisecond
				g.Go(func() {
					defer cancel()
					time.Sleep(pause)
					f := f
					f.Flow = f.Scheduler.NewFlow(Class(off % 2)) // Urgent or Soon
					buf := make([]byte, n)
					_, err := f.Range(ctx, nil, buf, off)
					if err != nil && ctx.Err() == nil {
						t.Errorf("%d bytes at %d: %v", n, off, err)
					}
					if err == nil && !bytes.Equal(buf, blob[off:off+n]) {
						t.Errorf("%d bytes at %d are wrong", n, off)
					}
					after := bytes.Clone(buf)
					time.Sleep(time.Second)
					if !bytes.Equal(buf, after) {
						t.Error("a buffer changed after the end of its range")
					}
				})
			}
			g.Wait()
			if n := inUse(f.Scheduler.Places); n != 0 || len(f.Scheduler.pieces.readers) != 0 {
				t.Errorf("%d places and %d readers are left", n, len(f.Scheduler.pieces.readers))
			}
		})
	}
}

package transfer

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
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
	most  int64         // bytes of an answer, which then breaks off; 0 is no limit
	fail  func(call int) error
	late  bool   // what begins at 0 fails after a second
	once  []byte // of the first answer instead of blob

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
	if s.late && off == 0 {
		time.Sleep(time.Second)
		return nil, 0, errdefs.ErrUnavailable
	}
	if s.most > 0 {
		n = min(n, s.most)
	}
	blob := s.blob
	if s.once != nil && call == 1 {
		blob = s.once
	}
	return &pieceBody{ctx, bytes.NewReader(blob[off : off+n]), s.every}, off, nil
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
				if _, err := f.Range(t.Context(), nil, got[off:off+4<<10], off, nil); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait() // in order
		}
		g.Wait()
		if !bytes.Equal(got, s.blob) {
			t.Error("wrong bytes")
		}
		slices.Sort(s.asked[1:]) // the first one alone, then two at once
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

// A bumpyServer is a burstServer with a rate for each piece.
type bumpyServer struct {
	*Scheduler
	asked map[int64]int // how often, by piece; guarded by pieces.mu, as the next fields
	first int           // pieces in the first second
	most  int           // pieces at a time
}

func (s *bumpyServer) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	s.pieces.mu.Lock()
	defer s.pieces.mu.Unlock()
	s.asked[off]++
	for _, q := range s.pieces.lanes {
		s.most = max(s.most, q.reading)
	}
	return (&burstServer{every: time.Duration(1+off>>24%5) * time.Second}).Fetch(ctx, d, size, off, n)
}

// TestPieceTurns checks that a work begins with one piece and then reads few at a time, each of them once, as long as it
// has as many buffers as twice the connections: pieces wait until their ranges have buffers.
func TestPieceTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pieces = 50
		m := newMirrored(t, quick(), quick())
		s := &bumpyServer{Scheduler: m.fetch.Scheduler, asked: map[int64]int{}}
		time.AfterFunc(time.Second, func() {
			s.pieces.mu.Lock()
			defer s.pieces.mu.Unlock()
			s.first = len(s.asked)
		})
		m.endpoint.Gather, m.endpoint.Piece = 30*time.Second, 16<<20
		list := m.sources()
		list[0].Fetcher = s
		m.from.Set("a", list)
		var next atomic.Int64
		var g sync.WaitGroup
		for range 2 * s.Places.size {
			g.Go(func() {
				buf := make([]byte, 4<<20)
				for i := next.Add(1) - 1; i < 4*pieces; i = next.Add(1) - 1 {
					if _, err := m.fetch.Range(t.Context(), nil, buf, i<<22, nil); err != nil {
						t.Error(err)
					}
				}
			})
			synctest.Wait() // in order
		}
		g.Wait()
		if most := s.Places.size / 2; s.most != most || s.first != 1 {
			t.Errorf("%d pieces at a time, want %d, and %d at first", s.most, most, s.first)
		}
		for off, n := range s.asked {
			if n > 1 {
				t.Errorf("the piece at %d was asked for %d times", off, n)
			}
		}
		if len(s.asked) != pieces || len(s.pieces.lanes) > 0 {
			t.Errorf("%d pieces were asked for, and %d lanes are left", len(s.asked), len(s.pieces.lanes))
		}
	})
}

// TestSilentMirror checks that pieces that wait for their turn at a mirror that hangs come from the origin with the one that
// has found that out.
func TestSilentMirror(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMirrored(t, quick(), quick())
		m.endpoint.Gather, m.endpoint.LongGather, m.endpoint.Piece = 30*time.Second, 2*time.Minute, 16<<20
		list := m.sources()
		list[0].Fetcher = late{m.mirror, time.Hour}
		m.from.Set("a", list)
		if took := m.ranges(5); took > 40*time.Second || len(m.fetch.Scheduler.pieces.lanes) > 0 { // of two pieces
			t.Errorf("took %v, and %d lanes are left", took, len(m.fetch.Scheduler.pieces.lanes))
		}
	})
}

// TestPieceOutOfTurn checks that a piece for which something more urgent waits does not wait for others, and that what
// ends while it waits leaves its turn to others.
func TestPieceOutOfTurn(t *testing.T) {
	for _, c := range []Class{Urgent, Soon} {
		synctest.Test(t, func(t *testing.T) {
			s := &pieceServer{blob: randomBlob(4 * 16 << 10), every: time.Hour}
			f := pieced(s, nil)
			f.Flow = f.Scheduler.NewFlow(Background)
			ctx, cancel := context.WithCancel(t.Context())
			var g sync.WaitGroup
			get := func(ctx context.Context, f Fetch, off int64) {
				g.Go(func() { f.Range(ctx, nil, make([]byte, 4<<10), off, nil) })
				synctest.Wait()
			}
			late, end := context.WithCancel(ctx)
			get(ctx, f, 0)
			get(late, f, 16<<10)
			get(ctx, f, 32<<10)
			get(ctx, f, 48<<10)
			if n := len(s.asked); n != 1 {
				t.Errorf("%d pieces were asked for at a time", n)
			}
			other := f
			other.Flow = f.Scheduler.NewFlow(c)
			get(ctx, other, 52<<10)
			end()
			time.Sleep(time.Second)
			if n := len(s.asked); n != 2 || s.asked[1] != "49152-65536" {
				t.Errorf("asked for %v", s.asked)
			}
			cancel()
			g.Wait()
			synctest.Wait()
			if n := len(f.Scheduler.pieces.lanes) + len(f.Scheduler.pieces.readers) + inUse(f.Scheduler.Places); n > 0 {
				t.Errorf("lanes, readers or places are left: %d", n)
			}
		})
	}
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
					_, err := f.Range(ctx, nil, buf, off, nil)
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

// TestRangeOfSeveralSources wants no byte twice after answers that break off. If the bytes of a mirror and of an origin are
// wrong together, they are fetched again from one of them, and a mirror is blamed for what it gave and for nothing else.
func TestRangeOfSeveralSources(t *testing.T) {
	const size = 12 << 10
	right, wrong := randomBlob(size), make([]byte, size)
	unavailable := func(int) error { return errdefs.ErrUnavailable }
	for name, tt := range map[string]struct {
		mirror, origin *pieceServer
		piece          int64  // of the mirror
		first          bool   // the origin is asked first
		asked          string // requests to the origin; "": any
		liar           bool   // the mirror is reported as wrong
	}{
		"the mirror breaks off":             {mirror: &pieceServer{blob: right, most: 5 << 10}, origin: &pieceServer{blob: right}, asked: "[5120-12288]"},
		"a piece breaks off":                {mirror: &pieceServer{blob: right, most: 5 << 10}, piece: 8 << 10, origin: &pieceServer{blob: right}, asked: "[5120-12288]"},
		"the first piece fails":             {mirror: &pieceServer{blob: right, late: true}, piece: 8 << 10, origin: &pieceServer{blob: right, most: 11 << 10}, first: true, asked: "[0-12288]"},
		"the origin breaks off":             {mirror: &pieceServer{blob: right}, origin: &pieceServer{blob: right, most: 5 << 10}, first: true, asked: "[0-12288]"},
		"the origin often breaks off":       {mirror: &pieceServer{fail: unavailable}, origin: &pieceServer{blob: right, most: 5 << 10}, asked: "[0-12288 5120-12288 10240-12288]"},
		"both break off":                    {mirror: &pieceServer{blob: right, most: 3 << 10}, origin: &pieceServer{blob: right, most: 4 << 10}},
		"a mirror lies and breaks off":      {mirror: &pieceServer{blob: wrong, most: 5 << 10}, origin: &pieceServer{blob: right}, asked: "[5120-12288 0-12288]", liar: true},
		"a piece is wrong and breaks off":   {mirror: &pieceServer{blob: wrong, most: 5 << 10}, piece: 8 << 10, origin: &pieceServer{blob: right}, asked: "[5120-12288 0-12288]", liar: true},
		"an origin is wrong and breaks off": {mirror: &pieceServer{blob: right}, origin: &pieceServer{blob: wrong, most: 5 << 10}, first: true},
		"an origin is wrong once": {
			mirror: &pieceServer{blob: right, most: 5 << 10}, origin: &pieceServer{blob: right, once: wrong}, asked: "[5120-12288 0-12288]",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := pieced(tt.mirror, tt.origin)
				f.Size = size
				list := f.From.Order()
				list[0].Endpoint.Piece = tt.piece
				if tt.first {
					list[0], list[1] = list[1], list[0]
				}
				f.From.Set("a", list)
				f.Corrupt, f.Log = new(atomic.Int64), slog.New(slog.DiscardHandler)
				got := make([]byte, size)
				_, err := f.Range(t.Context(), nil, got, 0, func() error {
					if !bytes.Equal(got, right) {
						return errdefs.ErrDataLoss
					}
					return nil
				})
				if err != nil || !bytes.Equal(got, right) {
					t.Errorf("wrong bytes, %v", err)
				}
				mirror := slices.IndexFunc(list, func(s Source) bool { return s.Endpoint.isMirror() })
				if n := list[mirror].Endpoint.Counts.Wrong.Load(); n != 0 != tt.liar {
					t.Errorf("the mirror was reported %d times, want it: %t", n, tt.liar)
				}
				if asked := fmt.Sprint(tt.origin.asked); tt.asked != "" && asked != tt.asked {
					t.Errorf("the origin was asked for %s, want %s", asked, tt.asked)
				}
			})
		})
	}
}

// TestRangeOfBrokenSources checks that a range ends although each of its sources always gives a part of it: together
// all, or wrong bytes.
func TestRangeOfBrokenSources(t *testing.T) {
	right := randomBlob(100 << 10)
	for name, blob := range map[string][]byte{"right": right, "wrong": make([]byte, len(right))} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := pieced(&pieceServer{blob: blob, most: 5 << 10}, &pieceServer{blob: right, most: 5 << 10})
				f.Corrupt, f.Log = new(atomic.Int64), slog.New(slog.DiscardHandler)
				got := make([]byte, len(right))
				_, err := f.Range(t.Context(), nil, got, 0, func() error {
					if !bytes.Equal(got, right) {
						return errdefs.ErrDataLoss
					}
					return nil
				})
				if (err == nil) != (name == "right") {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// TestJoinAfterTheLast checks that a range does not join a reader that the last range has left.
func TestJoinAfterTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &pieceServer{blob: randomBlob(16 << 10), every: time.Millisecond}
		s.fail = func(call int) error {
			if call == 1 {
				time.Sleep(time.Second)
				return context.Canceled
			}
			return nil
		}
		f := pieced(s, nil)
		ctx, cancel := context.WithCancel(t.Context())
		go f.Range(ctx, nil, make([]byte, 1<<10), 0, nil)
		synctest.Wait()
		cancel()
		synctest.Wait()
		if src, err := f.Range(t.Context(), nil, make([]byte, 1<<10), 0, nil); err != nil || failures(src.Endpoint) != 0 {
			t.Errorf("%d failures of the mirror, %v", failures(src.Endpoint), err)
		}
		time.Sleep(time.Second) // the first request ends
	})
}

// TestDroppedBytes checks that bytes of a piece that no range wants keep to the rate limit, and are counted.
func TestDroppedBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := pieced(&pieceServer{blob: randomBlob(16 << 10), every: time.Microsecond}, nil)
		f.Flow = f.Scheduler.NewFlow(Background)
		f.Scheduler.SetRate(1 << 10)
		start := time.Now()
		src, err := f.Range(t.Context(), nil, make([]byte, 1<<10), 15<<10, nil)
		if err != nil || time.Since(start) < 11*time.Second { // a burst of 4 KiB is free
			t.Errorf("16 KiB took %v, %v", time.Since(start), err)
		}
		if n := src.Endpoint.Counts.Bytes.Load(); n != 16<<10 {
			t.Errorf("%d bytes were counted", n)
		}
	})
}

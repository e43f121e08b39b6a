package chunkfile

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/opencontainers/go-digest"
)

// readersActive makes a reader of another file progress for ever.
func readersActive(s *Set) {
	later := time.Now().Add(24 * time.Hour)
	s.lastActive.Store(&later)
}

// TestReadersBeforeHash checks that background work does not hash a file while readers make progress,
// and hashes it when a caller waits for the end.
func TestReadersBeforeHash(t *testing.T) {
	for _, wrong := range []bool{false, true} {
		t.Run(fmt.Sprint("wrong=", wrong), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testReadersBeforeHash(t, wrong) })
		})
	}
}

func testReadersBeforeHash(t *testing.T, wrong bool) {
	const size, groups = 1000, 20
	s, f, m := newFile(t, groups, size)
	if wrong {
		f.Digest = digest.FromString("another file")
	}
	readersActive(s)
	flow := s.Scheduler.NewFlow(transfer.Background)
	filled := make(chan error, 1)
	go func() {
		_, err := f.Fill(t.Context(), flow, &Patience{}, func() {})
		filled <- err
	}()
	synctest.Wait()
	if n := f.Present(); n != groups*size {
		t.Fatalf("%d bytes are there", n)
	}
	b := make([]byte, size) // chunks have their own digests
	if _, err := readAt(t.Context(), f, b, 3*size); err != nil || digest.FromBytes(b) != f.Layout.Chunks[3].Digest {
		t.Errorf("read before the file is hashed: %v", err)
	}
	readersActive(s)
	time.Sleep(patience / 2)
	select {
	case err := <-filled:
		t.Errorf("ended while readers get on: %v", err)
	default:
	}
	flow.Promote(transfer.Soon)
	err := <-filled
	var not *verify.Error
	if errors.As(err, &not) != wrong || err != nil && !wrong {
		t.Errorf("hashed at the end: %v", err)
	}
	for off, n := range m.asked {
		if n != 1 {
			t.Errorf("bytes at %d were asked for %d times", off, n)
		}
	}
}

// TestHashEndsWithContext checks that work that waits for readers ends with its context.
func TestHashEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, _ := newFile(t, 20, 1000)
		readersActive(s)
		ctx, cancel := context.WithCancel(t.Context())
		filled := make(chan error, 1)
		go func() {
			_, err := f.Fill(ctx, s.Scheduler.NewFlow(transfer.Background), &Patience{}, func() {})
			filled <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-filled; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	})
}

// TestPatienceOfAllFiles checks that a reader delays the files of a model by one patience, not each.
func TestPatienceOfAllFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, limit := time.Now(), &Patience{}
		for range 4 {
			s, f, _ := newFile(t, 3, 1000)
			readersActive(s)
			if _, err := f.Fill(t.Context(), s.Scheduler.NewFlow(transfer.Background), limit, func() {}); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took < patience || took > patience+quiet {
			t.Errorf("the files waited for %v, want %v", took, patience)
		}
	})
}

// TestSmallFilesStayOpen checks that the stage of a file of few groups stays open between reads, unless
// there are too many such files.
func TestSmallFilesStayOpen(t *testing.T) {
	s, f, _ := newFile(t, 2, 1000)
	read := func(f *File) {
		t.Helper()
		if _, err := readAt(t.Context(), f, make([]byte, 1), 0); err != nil {
			t.Fatal(err)
		}
	}
	open := func(f *File) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.stage != nil
	}
	read(f)
	s.work.Wait() // read-ahead also uses it
	if !open(f) {
		t.Error("a file that was read is closed")
	}
	var others []*File
	for i := range maxIdle {
		l := *f.Layout
		l.Group = fmt.Sprint(i)
		o := s.Acquire(f.Digest, f.Size, "o", &l)
		o.Sources.Set("test", f.Sources.Order())
		read(o)
		others = append(others, o)
	}
	s.work.Wait()
	if open(f) {
		t.Errorf("a file is open after %d others were read", len(others))
	}
	if !open(others[len(others)-1]) || !open(others[1]) {
		t.Error("files that were read are closed")
	}
	read(f)
}

// TestFilesAreClosed checks that a reader that comes when a file has lost its last user neither opens its stage,
// which nobody would close, nor creates it.
func TestFilesAreClosed(t *testing.T) {
	for _, groups := range []int{2, 2 * fewGroups} {
		s, f, _ := newFile(t, groups, 1000)
		if _, err := readAt(t.Context(), f, make([]byte, 1), 0); err != nil {
			t.Fatal(err)
		}
		s.work.Wait() // read-ahead
		s.Release(f)
		if err := s.Area.Remove(f.dir); err != nil {
			t.Fatal(err)
		}
		if _, err := readAt(t.Context(), f, make([]byte, 1), 0); !errors.Is(err, ErrGone) {
			t.Errorf("%d groups: got %v, want %v", groups, err, ErrGone)
		}
		if f.stage != nil {
			t.Errorf("%d groups: the stage is open", groups)
		}
		if names := s.Area.Dirs(f.Digest); len(names) != 0 {
			t.Errorf("%d groups: %q are there again", groups, names)
		}
	}
}

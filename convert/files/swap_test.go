package files_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/files"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

var secret, public = bytes.Repeat([]byte("secret "), 10<<10), bytes.Repeat([]byte("public "), 10<<10)

// A swapper replaces names in a directory by links to a secret, pipes, other files and directories.
type swapper struct {
	t           *testing.T
	dir, beside string // of the model; for what is not in place
	outside     string
	pipes       bool
}

// put creates a file under another name and renames it to name.
func (s *swapper) put(name string, create func(at string) error) {
	s.t.Helper()
	at := filepath.Join(s.beside, "new")
	if err := errors.Join(create(at), os.Rename(at, filepath.Join(s.dir, name))); err != nil {
		s.t.Error(err)
	}
}

func (s *swapper) file(at string) error { return os.WriteFile(at, public, 0o644) }

func (s *swapper) link(to string) func(string) error {
	return func(at string) error { return os.Symlink(to, at) }
}

// once replaces everything once, and puts it back.
func (s *swapper) once() {
	s.put("a", s.link(filepath.Join(s.outside, "secret")))
	if s.pipes {
		s.put("b", func(at string) error { return unix.Mkfifo(at, 0o644) })
	} else {
		s.put("b", s.link("../outside/secret"))
	}
	d, away := filepath.Join(s.dir, "d"), filepath.Join(s.beside, "d")
	if err := errors.Join(os.Rename(d, away), os.Symlink(s.outside, d)); err != nil {
		s.t.Error(err)
	}
	s.put("a", s.file)
	s.put("b", s.file)
	if err := errors.Join(os.Remove(d), os.Rename(away, d)); err != nil {
		s.t.Error(err)
	}
}

// TestSwapped opens and reads a directory while its files are replaced by links out of it and by
// pipes: whatever is read comes from the directory, and nothing waits.
func TestSwapped(t *testing.T) {
	for _, pipes := range []bool{false, true} {
		top := t.TempDir()
		s := &swapper{t: t, dir: top + "/m", beside: top + "/beside", outside: top + "/outside", pipes: pipes}
		for _, dir := range []string{s.dir + "/d", s.beside, s.outside} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{s.dir + "/a", s.dir + "/b", s.dir + "/d/secret"} {
			if err := s.file(name); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(s.outside+"/secret", secret, 0o600); err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		var swaps sync.WaitGroup
		swaps.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond): // so that some readings succeed
					s.once()
				}
			}
		})
		end := sync.OnceFunc(func() {
			close(stop)
			swaps.Wait()
		})
		defer end()
		done := make(chan int, 1)
		go func() {
			good := 0
			for range 3000 {
				if readAll(t, s.dir) {
					good++
				}
			}
			done <- good
		}()
		select {
		case good := <-done:
			t.Logf("%d of 3000 were read", good)
		case <-time.After(5 * time.Minute):
			t.Fatal("reading waits for a pipe")
		}
		end()
		if !readAll(t, s.dir) {
			t.Error("the directory, left alone, is not read")
		}
	}
}

// readAll opens a directory and reads all its files, as a conversion does, and reports whether that
// succeeds.
func readAll(t *testing.T, dir string) bool {
	src, err := files.Open(t.Context(), dir)
	if err != nil {
		return false
	}
	defer src.Close()
	for _, f := range src.Model.Table.Files {
		if f.Digest == digest.FromBytes(secret) {
			t.Errorf("%s is the secret", f.Path)
		}
		r, _, err := src.Fetcher.Fetch(t.Context(), f.Digest, f.Size, 0, f.Size)
		if err != nil {
			return false
		}
		p, err := io.ReadAll(r)
		if bytes.Contains(p, secret[:7]) {
			t.Errorf("%s has bytes of the secret", f.Path)
		}
		if err := errors.Join(err, r.Close()); err != nil {
			return false
		}
	}
	return true
}

// TestChanged checks that a file that was replaced after it was hashed is not read.
func TestChanged(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "a.bin")
	for _, open := range []string{dir, name} {
		if err := os.WriteFile(name, public, 0o644); err != nil {
			t.Fatal(err)
		}
		src, err := files.Open(t.Context(), open)
		if err != nil {
			t.Fatal(err)
		}
		defer src.Close()
		if err := errors.Join(os.WriteFile(dir+"/.new", secret, 0o644), os.Rename(dir+"/.new", name)); err != nil {
			t.Fatal(err)
		}
		d := src.Model.Table.Files[0].Digest
		if _, _, err := src.Fetcher.Fetch(t.Context(), d, int64(len(public)), 0, 1); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: got %v", open, err)
		}
	}
}

// TestLinksOfLinks follows links as the kernel does.
func TestLinksOfLinks(t *testing.T) {
	hub := t.TempDir()
	dir := hub + "/snapshots/r"
	if err := errors.Join(os.MkdirAll(dir+"/sub/deep", 0o755), os.MkdirAll(hub+"/blobs", 0o755), os.MkdirAll(hub+"/other", 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{hub + "/blobs/1", dir + "/plain", hub + "/other/x"} {
		if err := os.WriteFile(name, public, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for target, ok := range map[string]bool{
		"../plain": true, "deep/../../plain": true, "./.././/plain": true, dir + "/plain": true, "../../../blobs/1": true,
		"../../../other/x": false, "../../../blobs/../other/x": false, "../../../blobs": false, "../../../blobs/2": false,
		"link": false, "deep": false, ".": false, "/etc/hostname": false, "../../r/plain": false, "none": false,
	} {
		if err := errors.Join(os.RemoveAll(dir+"/sub/link"), os.Symlink(target, dir+"/sub/link")); err != nil {
			t.Fatal(err)
		}
		src, err := files.Open(t.Context(), dir)
		if (err == nil) != ok {
			t.Errorf("%q: %v", target, err)
		}
		if err == nil {
			src.Close()
		}
	}
}

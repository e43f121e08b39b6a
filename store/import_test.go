package store_test

import (
	"bytes"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// opener opens the files of a directory that are named by the digests of blobs.
func opener(dir string) func(digest.Digest) (*os.File, error) {
	return func(d digest.Digest) (*os.File, error) {
		f, err := os.Open(filepath.Join(dir, d.Encoded()))
		if os.IsNotExist(err) {
			err = errors.Join(err, errdefs.ErrNotFound)
		}
		return f, err
	}
}

// put writes a file for opener.
func put(t *testing.T, dir string, name, p []byte) string {
	t.Helper()
	path := filepath.Join(dir, digest.FromBytes(name).Encoded())
	if err := os.WriteFile(path, p, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

func objectFile(s *store.Store, p []byte) string {
	return filepath.Join(s.ObjectsDir(), store.ObjectName(digest.FromBytes(p)))
}

// TestLinkBesideGC: a collection leaves a hard link that is being hashed, however old the file is.
func TestLinkBesideGC(t *testing.T) {
	weights, dir := storetest.Random(1, 8<<20), t.TempDir()
	s := storetest.Open(t, t.TempDir(), store.Options{})
	old := time.Now().Add(-48 * time.Hour)
	if err := os.Chtimes(put(t, dir, weights, weights), old, old); err != nil {
		t.Fatal(err)
	}
	table := storetest.NewBuilder("m").Raw("w", weights, 0o644).Put(t, s)
	hold(t, s, table)
	collected := 0
	got, err := s.Link(t.Context(), table, store.LinkOptions{Open: opener(dir), Progress: func([]store.Progress) {
		collected++
		if _, err := s.GC(t.Context(), store.GCOptions{Keep: math.MaxInt64}); err != nil {
			t.Error(err)
		}
	}})
	if want := (store.Linked{Hard: int64(len(weights))}); got != want || err != nil || collected == 0 {
		t.Errorf("got %+v, want %+v: %v, beside %d collections", got, want, err, collected)
	}
}

// TestLinkHard links files of the same file system: only files that nobody but root can write share
// their inode.
func TestLinkHard(t *testing.T) {
	weights := storetest.Random(1, 3<<20+5)
	for name, tt := range map[string]struct {
		spoil func(t *testing.T, path string)
		want  string
	}{
		"of root": {func(*testing.T, string) {}, store.LinkHard},
		"read only descriptor": {func(t *testing.T, path string) {
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
		}, store.LinkHard},
		"of a user": {func(t *testing.T, path string) {
			if err := os.Chown(path, 1000, 0); err != nil {
				t.Fatal(err)
			}
		}, store.LinkNone},
		"of a group": {func(t *testing.T, path string) {
			if err := os.Chown(path, 0, 1000); err != nil {
				t.Fatal(err)
			}
		}, store.LinkNone},
		"group can write": {func(t *testing.T, path string) { chmod(t, path, 0o664) }, store.LinkNone},
		"all can write":   {func(t *testing.T, path string) { chmod(t, path, 0o646) }, store.LinkNone},
		"other mode":      {func(t *testing.T, path string) { chmod(t, path, 0o600) }, store.LinkNone},
		"has another name": {func(t *testing.T, path string) {
			if err := os.Link(path, path+".log"); err != nil {
				t.Fatal(err)
			}
		}, store.LinkNone},
		"open for writing": {func(t *testing.T, path string) {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
		}, store.LinkNone},
		"mapped for writing": {func(t *testing.T, path string) {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			m, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err := errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unix.Munmap(m) })
		}, store.LinkNone},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := storetest.Open(t, t.TempDir(), store.Options{})
			path := put(t, dir, weights, weights)
			tt.spoil(t, path)
			table := storetest.NewBuilder("m").Raw("w", weights, 0o644).Put(t, s)
			got, err := s.Link(t.Context(), table, store.LinkOptions{Open: opener(dir)})
			if err != nil {
				t.Fatal(err)
			}
			want := store.Linked{}
			if tt.want == store.LinkHard {
				want.Hard = int64(len(weights))
			}
			if got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
			object := objectFile(s, weights)
			if _, err := os.Stat(object); (err == nil) != (tt.want == store.LinkHard) {
				t.Errorf("object: %v", err)
			} else if err == nil && inode(t, object) != inode(t, path) {
				t.Error("the object is another inode")
			}
			if left := leftovers(t, s); len(left) > 0 {
				t.Errorf("left below partial: %v", left)
			}
		})
	}
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// TestLinkTable links what can be linked, and leaves the rest to Hydrate. Then the table is complete,
// and linked files have not been read again.
func TestLinkTable(t *testing.T) {
	dir := t.TempDir()
	s := storetest.Open(t, t.TempDir(), store.Options{})
	linked, missing, part := storetest.Random(2, 2<<20), storetest.Random(3, 1<<20), storetest.Random(4, 1<<20)
	put(t, dir, linked, linked)
	put(t, dir, part, part)
	table := storetest.NewBuilder("m").Raw("linked", linked, 0o644).Raw("missing", missing, 0o644).Raw("empty", nil, 0o644).
		Parts("parts", 0o644, storetest.Part{Inline: []byte("head")}, storetest.Part{Blob: part, N: len(part)}).Put(t, s)
	var last []store.Progress
	o := store.LinkOptions{Open: opener(dir), Progress: func(ps []store.Progress) { last = ps }}
	got, err := s.Link(t.Context(), table, o)
	if err != nil || got.Hard != int64(len(linked)) || got.Cloned != 0 {
		t.Fatalf("got %+v, %v", got, err)
	}
	states := map[string]string{}
	for _, p := range last {
		states[p.Name] = p.State
	}
	if states["linked"] != "complete" || states["missing"] != "waiting" {
		t.Errorf("states: %v", states)
	}
	f := storetest.NewFetcher(linked, missing, part, nil)
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
		t.Fatal(err)
	}
	if n := f.Calls(digest.FromBytes(linked)); n != 0 {
		t.Errorf("what was linked was fetched %d times", n)
	}
	files := content(t, s, table)
	if files["linked"] != string(linked) || files["missing"] != string(missing) || files["parts"] != "head"+string(part) {
		t.Error("files are not right")
	}
	// A second run has nothing to do.
	if got, err := s.Link(t.Context(), table, o); err != nil || got != (store.Linked{}) {
		t.Errorf("again: got %+v, %v", got, err)
	}
}

// TestLinkRefuses checks that a file with wrong bytes leaves nothing behind.
func TestLinkRefuses(t *testing.T) {
	weights := storetest.Random(5, 2<<20)
	wrong := bytes.Clone(weights)
	wrong[len(wrong)-1] ^= 1
	for name, p := range map[string][]byte{
		"a bit": wrong, "shorter": weights[:len(weights)-1], "longer": append(bytes.Clone(weights), 0), "empty": nil,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := storetest.Open(t, t.TempDir(), store.Options{})
			put(t, dir, weights, p)
			table := storetest.NewBuilder("m").Raw("w", weights, 0o644).Put(t, s)
			_, err := s.Link(t.Context(), table, store.LinkOptions{Open: opener(dir)})
			var wrong *verify.Error
			if !errors.As(err, &wrong) || wrong.Want != digest.FromBytes(weights) {
				t.Errorf("got %v, want a verify.Error", err)
			}
			if _, err := os.Stat(objectFile(s, weights)); !os.IsNotExist(err) {
				t.Errorf("object: %v", err)
			}
			if left := leftovers(t, s); len(left) > 0 {
				t.Errorf("left below partial: %v", left)
			}
		})
	}
	dir := t.TempDir()
	s := storetest.Open(t, t.TempDir(), store.Options{})
	if err := unix.Mkfifo(filepath.Join(dir, digest.FromBytes(weights).Encoded()), 0o644); err != nil {
		t.Fatal(err)
	}
	table := storetest.NewBuilder("m").Raw("w", weights, 0o644).Put(t, s)
	_, err := s.Link(t.Context(), table, store.LinkOptions{Open: func(d digest.Digest) (*os.File, error) {
		return os.OpenFile(filepath.Join(dir, d.Encoded()), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	}})
	if !errdefs.IsInvalidArgument(err) {
		t.Errorf("a pipe: got %v", err)
	}
}

// TestLinkClone shares blocks on a file system with reflinks: a write to the file does not change the
// object, whoever owns the file.
func TestLinkClone(t *testing.T) {
	dir := xfs(t)
	s, err := store.Open(filepath.Join(dir, "store"), store.Options{Reserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	weights := storetest.Random(6, 5<<20+5)
	path := put(t, dir, weights, weights)
	if err := os.Chown(path, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	table := storetest.NewBuilder("m").Raw("w", weights, 0o644).Put(t, s)
	got, err := s.Link(t.Context(), table, store.LinkOptions{Open: opener(dir)})
	if err != nil || got != (store.Linked{Cloned: int64(len(weights))}) {
		t.Fatalf("got %+v, %v", got, err)
	}
	if err := os.WriteFile(path, []byte("changed"), 0o644); err != nil {
		t.Fatal(err)
	}
	p, err := os.ReadFile(objectFile(s, weights))
	if err != nil || !bytes.Equal(p, weights) {
		t.Errorf("the object changed with the file: %v", err)
	}
	info, err := os.Stat(objectFile(s, weights))
	if err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 || info.Mode() != 0o644 {
		t.Errorf("object: %v, %v", info.Mode(), err)
	}
}

// xfs makes a file system with reflinks.
func xfs(t *testing.T) (dir string) {
	t.Helper()
	mkfs, err := exec.LookPath("mkfs.xfs")
	if err != nil {
		t.Fatal("mkfs.xfs is not installed; test/install.sh does that")
	}
	tmp := t.TempDir()
	image := filepath.Join(tmp, "fs")
	dir = filepath.Join(tmp, "mnt")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 320<<20), os.Mkdir(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{mkfs, "-q", "-m", "reflink=1", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v\n%s", err, out)
		}
	})
	return dir
}

package tree

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store/durable"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest/disktest"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// objects returns objects with the given contents, named by their digests.
func objects(t *testing.T, contents ...string) Objects {
	t.Helper()
	return objectsIn(t, t.TempDir(), contents...)
}

// objectsIn is objects in a directory.
func objectsIn(t *testing.T, dir string, contents ...string) Objects {
	t.Helper()
	for _, c := range contents {
		write(t, filepath.Join(dir, digest.FromString(c).Encoded()), c)
	}
	return Objects{Dir: dir, Name: digest.Digest.Encoded, Size: func(d digest.Digest) (int64, error) {
		fi, err := os.Stat(filepath.Join(dir, d.Encoded()))
		if err != nil {
			return 0, err
		}
		return fi.Size(), nil
	}}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// file is a regular file of a table.
func file(path string, mode uint32, content string) filetable.File {
	return filetable.File{Path: path, Type: filetable.TypeReg, Mode: mode, ModTime: time.Unix(1_700_000_000, 5).UTC(),
		Size: int64(len(content)), Digest: digest.FromString(content)}
}

// show shows files in dir.
func show(t *testing.T, dir string, o Objects, b Backend, files ...filetable.File) error {
	t.Helper()
	_, err := Show(t.Context(), dir, o, b, files)
	return err
}

// The store refuses setuid, setgid and sticky bits in a table; a table that has them nevertheless is
// not shown.
func TestModeMasked(t *testing.T) {
	f := filetable.File{Mode: 0o7755}
	if got, want := permOf(f), fs.FileMode(0o755); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestModTime(t *testing.T) {
	epoch := time.Unix(0, 0)
	tests := []struct {
		name      string
		got, want time.Time
	}{
		{"none", time.Time{}, epoch},
		{"in 1901", time.Date(1901, 6, 1, 0, 0, 0, 0, time.UTC), epoch},
		{"before 1901", time.Date(1492, 1, 1, 0, 0, 0, 0, time.UTC), epoch},
		{"after 2261", time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), epoch},
		{"before the epoch", time.Unix(-5, 0), time.Unix(-5, 0)},
		{"nanoseconds", time.Unix(5, 7), time.Unix(5, 7)},
	}
	for _, test := range tests {
		if got := mtimeOf(filetable.File{ModTime: test.got}); !got.Equal(test.want) {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
}

// A table with another size than that of the object is not shown.
func TestObjectSize(t *testing.T) {
	o := objects(t, "content")
	for _, b := range []Backend{Stubs, Links} {
		f := file("f", 0o644, "content")
		f.Size = 1 << 40
		if err := show(t, t.TempDir(), o, b, f); !errdefs.IsDataLoss(err) {
			t.Errorf("%s: got %v, want data loss", b, err)
		}
		if err := show(t, t.TempDir(), o, b, file("f", 0o644, "never stored")); err == nil {
			t.Errorf("%s: a file without object: got no error", b)
		}
	}
}

// Many files are as durable and right as few; they are synced with the file system.
func TestMany(t *testing.T) {
	o, dir := objects(t, "content"), t.TempDir()
	var files []filetable.File
	for i := range syncAll {
		f := file(fmt.Sprintf("d%d/f", i), 0o600, "content")
		f.ModTime = time.Unix(int64(i), 0)
		files = append(files, f, filetable.File{Path: path.Dir(f.Path), Type: filetable.TypeDir, Mode: 0o700, ModTime: f.ModTime})
	}
	u, err := Show(t.Context(), dir, o, Stubs, files)
	if err != nil || u.Inodes != 2*syncAll+1 {
		t.Fatalf("got %+v, %v", u, err)
	}
	for _, f := range files {
		fi, err := os.Stat(filepath.Join(dir, f.Path))
		if err != nil || fi.Mode().Perm() != permOf(f) || !fi.ModTime().Equal(f.ModTime) {
			t.Errorf("%s: %v, %v", f.Path, fi, err)
		}
	}
}

// TestErrorsOfOthers makes many files on a disk that fails a write, which somebody else's sync of the file system is
// told first.
func TestErrorsOfOthers(t *testing.T) {
	if !durable.SyncfsTells() {
		t.Skip("this kernel tells nobody")
	}
	disk := disktest.New(t, "ext4", t.TempDir(), 64<<20)
	dir := filepath.Join(disk.Dir, "tree")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	o := objectsIn(t, disk.Dir, "content")
	var files []filetable.File
	for i := range syncAll {
		files = append(files, file(fmt.Sprint(i), 0o600, "content"))
	}
	made, err := open(dir, o, Links)
	if err != nil {
		t.Fatal(err)
	}
	defer made.close()
	if _, err := made.expect(files); err != nil {
		t.Fatal(err)
	}
	if err := made.putAll(t.Context(), files); err != nil {
		t.Fatal(err)
	}
	other, err := os.Open(disk.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	disk.FailWrites(1)
	if err := unix.Syncfs(int(other.Fd())); !errors.Is(err, unix.EIO) {
		t.Fatalf("the sync of others: %v, want %v", err, unix.EIO)
	}
	if err := made.finish(t.Context(), []string{"."}); !errors.Is(err, unix.EIO) {
		t.Errorf("the tree after that: %v, want %v", err, unix.EIO)
	}
}

// No table makes a file outside of the directory.
func TestTreeStaysInside(t *testing.T) {
	o, dir, outside := objects(t), t.TempDir(), t.TempDir()
	if err := show(t, dir, o, Stubs, filetable.File{Path: "l", Type: filetable.TypeSymlink, Target: outside}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"l/f", "../f", outside + "/f", "d/../../f"} {
		if err := show(t, dir, o, Stubs, filetable.File{Path: p, Type: filetable.TypeReg}); err == nil {
			t.Errorf("show %q: got no error", p)
		}
	}
	if got, err := os.ReadDir(outside); err != nil || len(got) != 0 {
		t.Errorf("outside: got %v, %v", got, err)
	}
}

// A file and a directory with the same name are an error, and neither is lost.
func TestTreeConflicts(t *testing.T) {
	for _, test := range []struct{ name, first, second string }{
		{"file then directory", "a", "a/b"},
		{"directory then file", "a/b", "a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := show(t, t.TempDir(), objects(t), Stubs,
				filetable.File{Path: test.first, Type: filetable.TypeReg}, filetable.File{Path: test.second, Type: filetable.TypeReg})
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("got %v, want invalid argument", err)
			}
		})
	}
}

func TestReplaceLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "f"), "old")
	write(t, filepath.Join(dir, tempName), "left over")
	if err := show(t, dir, objects(t), Stubs, filetable.File{Path: "f", Type: filetable.TypeReg, Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadDir(dir)
	if err != nil || len(got) != 1 || got[0].Name() != "f" {
		t.Fatalf("got %v, %v, want f alone", got, err)
	}
	if fi, err := got[0].Info(); err != nil || fi.Size() != 0 || fi.Mode() != 0o600 {
		t.Errorf("f: got %v, %v", fi, err)
	}
}

// Show repairs everything that Compare finds: after any change, showing the tree again restores it.
func TestShowRepairsWhatCompareFinds(t *testing.T) {
	const text = "some content"
	owned := file("d/f", 0o640, text)
	owned.UID, owned.GID = 1000, 100
	link := filetable.File{Path: "d/link", Type: filetable.TypeSymlink, UID: 1, Target: "f", ModTime: time.Unix(1_700_000_000, 0)}
	files := []filetable.File{owned, file("empty", 0o644, ""), link, {Path: "e/only", Type: filetable.TypeDir, Mode: 0o700, GID: 2}}
	at := func(name string, do func(path string) error) func(string) (string, error) {
		return func(dir string) (string, error) { return name, do(filepath.Join(dir, name)) }
	}
	for name, damage := range map[string]func(dir string) (path string, err error){
		"missing":       at("d/f", os.Remove),
		"mode":          at("d/f", func(p string) error { return os.Chmod(p, 0o666) }),
		"time":          at("d/f", func(p string) error { return os.Chtimes(p, time.Now(), time.Now()) }),
		"owner":         at("d/f", func(p string) error { return os.Chown(p, 0, 100) }),
		"group":         at("d/f", func(p string) error { return os.Chown(p, 1000, 0) }),
		"owner of link": at("d/link", func(p string) error { return os.Lchown(p, 0, 0) }),
		"its group":     at("e/only", func(p string) error { return os.Chown(p, 0, 0) }),
		"size":          at("d/f", func(p string) error { return os.Truncate(p, 3) }),
		"content":       at("empty", func(p string) error { return os.WriteFile(p, []byte("x"), 0o644) }),
		"no stub":       at("d/f", func(p string) error { return errors.Join(os.Remove(p), os.WriteFile(p, []byte(text)[:3], 0o640)) }),
		"another file":  at("d/f", func(p string) error { return errors.Join(os.Remove(p), os.Symlink("../empty", p)) }),
		"leads away":    at("d/link", func(p string) error { return errors.Join(os.Remove(p), os.Symlink("away", p)) }),
		"no link":       at("d/link", func(p string) error { return errors.Join(os.Remove(p), os.WriteFile(p, nil, 0o644)) }),
		"directory":     at("e/only", func(p string) error { return os.Chmod(p, 0o755) }),
		"no directory":  at("e/only", os.Remove),
		"stranger":      at("e/x", func(p string) error { return os.WriteFile(p, nil, 0o644) }),
		"second name":   at("empty", func(p string) error { return os.Link(p, filepath.Join(t.TempDir(), "x")) }),
		"left by crash": at("d/"+tempName, func(p string) error { return os.WriteFile(p, nil, 0o644) }),
	} {
		for _, b := range []Backend{Stubs, Links} {
			t.Run(name+" "+string(b), func(t *testing.T) {
				o, dir := objects(t, text), t.TempDir()
				if err := show(t, dir, o, b, files...); err != nil {
					t.Fatal(err)
				}
				if problems, err := Compare(dir, o, b, files); len(problems) > 0 || err != nil {
					t.Fatalf("before: %v, %v", problems, err)
				}
				path, err := damage(dir)
				if err != nil {
					t.Fatal(err)
				}
				problems, err := Compare(dir, o, b, files)
				if err != nil || !slices.ContainsFunc(problems, func(p Problem) bool { return p.Path == path }) {
					t.Errorf("damaged: %v, %v; want %q among them", problems, err, path)
				}
				if err := show(t, dir, o, b, files...); err != nil {
					t.Fatal(err)
				}
				if problems, err := Compare(dir, o, b, files); len(problems) > 0 || err != nil {
					t.Errorf("shown again: %v, %v", problems, err)
				}
			})
		}
	}
}

// The directory of files is opened a few times, not for each of them.
func TestOpensOfDirectories(t *testing.T) {
	o, dir := objects(t, "content"), t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	in, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(in)
	if _, err := unix.InotifyAddWatch(in, filepath.Join(dir, "d"), unix.IN_OPEN); err != nil {
		t.Fatal(err)
	}
	var files []filetable.File
	for i := range syncAll { // from here on files are not opened again to be synced
		files = append(files, file(fmt.Sprintf("d/%d", i), 0o644, "content"))
	}
	if err := show(t, dir, o, Stubs, files...); err != nil {
		t.Fatal(err)
	}
	events := make([]byte, syncAll*(unix.SizeofInotifyEvent+unix.NAME_MAX))
	n, err := unix.Read(in, events)
	if err != nil {
		t.Fatal(err)
	}
	opens, created := 0, 0
	for p := events[:n]; len(p) > 0; p = p[unix.SizeofInotifyEvent+binary.NativeEndian.Uint32(p[12:]):] {
		if binary.NativeEndian.Uint32(p[4:])&unix.IN_ISDIR != 0 {
			opens++
		} else {
			created++
		}
	}
	if opens > 10 || created != len(files) {
		t.Errorf("the directory was opened %d times, files in it %d times, want at most 10 and %d", opens, created, len(files))
	}
}

// A tree that is made in several parts is complete, counted as a whole, and repaired where all parts replace files of
// one directory.
func TestParts(t *testing.T) {
	o, dir := objects(t, "content"), t.TempDir()
	var files []filetable.File
	for i := range 4*partFiles + 1 {
		files = append(files, file(fmt.Sprintf("d/%d", i), 0o644, "content"))
	}
	first, err := Show(t.Context(), dir, o, Stubs, files)
	if want := int64(len(files) + 2); err != nil || first.Inodes != want {
		t.Fatalf("%d inodes, %v, want %d", first.Inodes, err, want)
	}
	for _, f := range files {
		if err := os.Truncate(filepath.Join(dir, f.Path), 1); err != nil {
			t.Fatal(err)
		}
	}
	again, err := Show(t.Context(), dir, o, Stubs, files)
	if err != nil || again != first {
		t.Errorf("shown again: %+v, %v, want %+v", again, err, first)
	}
	if problems, err := Compare(dir, o, Stubs, files); len(problems) > 0 || err != nil {
		t.Errorf("shown again: %d problems, %v", len(problems), err)
	}
	bad := files[3*partFiles]
	bad.Size++
	files[3*partFiles] = bad
	if err := show(t, dir, o, Stubs, files...); !errdefs.IsDataLoss(err) {
		t.Errorf("an object of another size: %v", err)
	}
}

package dirs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func open(t *testing.T) (r *Root, dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"kept", "other"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	r, err := Open(dir, func(name string) bool { return name == "kept" || name == "later" })
	if err != nil {
		t.Fatal(err)
	}
	return r, dir
}

func write(t *testing.T, r *Root, name string) {
	t.Helper()
	f, err := r.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString(name)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestRoot does the same in directories that stay open and in others.
func TestRoot(t *testing.T) {
	r, dir := open(t)
	defer r.Close()
	for _, from := range []string{"kept", "other", "other/../kept", "kept/sub"} {
		for _, to := range []string{"kept", "other"} {
			if err := r.MkdirAll(from, 0o700); err != nil {
				t.Fatal(err)
			}
			name, next := from+"/file", to+"/renamed"
			write(t, r, name)
			if err := r.Rename(name, next); err != nil {
				t.Fatal(err)
			}
			if size, regular, err := r.Size(next); size != int64(len(name)) || !regular || err != nil {
				t.Errorf("%s: size %d, regular %t, %v", next, size, regular, err)
			}
			if _, _, err := r.Size(name); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s after a rename: %v", name, err)
			}
			if _, err := r.Open(name); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s after a rename: %v", name, err)
			}
			if err := errors.Join(r.Sync(from), r.Sync(to), r.Remove(next)); err != nil {
				t.Error(err)
			}
			if err := r.Remove(next); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s after its removal: %v", next, err)
			}
		}
	}
	if err := r.Remove("kept/sub"); err != nil {
		t.Errorf("an empty directory: %v", err)
	}
	if _, err := r.Open("later/file"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that is missing: %v", err)
	}
	if err := r.MkdirAll("later", 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, r, "later/file")
	for _, name := range []string{"../x", "kept/../../x", "/kept/x", "kept/..", "."} {
		if f, err := r.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644); err == nil {
			f.Close()
			t.Errorf("%s can be opened", name)
		}
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(dir), "outside"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"kept/out": "../../outside", "kept/in": "../later/file", "kept/dir": "../later"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"kept/out", "kept/in"} {
		if _, err := r.Open(name); !errors.Is(err, unix.ELOOP) {
			t.Errorf("%s, a symbolic link: %v", name, err)
		}
		if _, regular, err := r.Size(name); regular || err != nil {
			t.Errorf("%s, a symbolic link: regular %t, %v", name, regular, err)
		}
	}
}

// TestKeep checks that paths lead to the latest directory of a name, and that closed ones are not used.
func TestKeep(t *testing.T) {
	r, dir := open(t)
	_, done, err := r.Keep("other")
	if err != nil {
		t.Fatal(err)
	}
	write(t, r, "other/old")
	if err := errors.Join(os.Rename(filepath.Join(dir, "other"), filepath.Join(dir, "gone")), os.Mkdir(filepath.Join(dir, "other"), 0o700)); err != nil {
		t.Fatal(err)
	}
	_, again, err := r.Keep("other")
	if err != nil {
		t.Fatal(err)
	}
	if err := done(); err != nil { // of the old one
		t.Fatal(err)
	}
	write(t, r, "other/new")
	if err := again(); err != nil {
		t.Fatal(err)
	}
	write(t, r, "other/newer")
	for _, name := range []string{"gone/old", "other/new", "other/newer"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Open("other/new"); err == nil {
		t.Error("a file can be opened after Close")
	}
}

// TestFewFiles uses many directories in a process that may open few files.
func TestFewFiles(t *testing.T) {
	if os.Getenv("DIRS_FEW") == "" {
		cmd := exec.Command("sh", "-c", `ulimit -n 64 && exec "$0" -test.run='^TestFewFiles$'`, os.Args[0])
		cmd.Env = append(os.Environ(), "DIRS_FEW=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	r, err := Open(t.TempDir(), func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for range 2 {
		for i := range 256 {
			dir := fmt.Sprintf("%02x", i)
			if err := r.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, r, dir+"/file")
			if err := errors.Join(r.Rename(dir+"/file", dir+"/renamed"), r.Sync(dir), r.Remove(dir+"/renamed")); err != nil {
				t.Fatal(err)
			}
		}
	}
}

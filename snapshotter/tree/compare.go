package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// A Problem is a file that differs from the table.
type Problem struct {
	Path string
	What string // continues a sentence that starts with Path
}

// Compare compares all of dir with the result of Show, without reading content.
func Compare(dir string, o Objects, b Backend, files []filetable.File) ([]Problem, error) {
	t, err := open(dir, o, b)
	if err != nil {
		return nil, err
	}
	defer t.close()
	var problems []Problem
	want, err := t.expect(files)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if f.Type == filetable.TypeDir {
			continue
		}
		if what := t.differs(f); what != "" {
			problems = append(problems, Problem{f.Path, what})
		}
	}
	for d, a := range t.dirs {
		if what := t.dirDiffers(d, a); what != "" {
			problems = append(problems, Problem{d, what})
		}
	}
	err = t.extra(want, func(p string) error {
		problems = append(problems, Problem{p, "does not belong to the model"})
		return nil
	})
	slices.SortFunc(problems, func(a, b Problem) int { return strings.Compare(a.Path, b.Path) })
	return problems, err
}

// Sample compares the largest file and a random one, and returns the first problem.
func Sample(dir string, o Objects, b Backend, files []filetable.File) ([]Problem, error) {
	t, err := open(dir, o, b)
	if err != nil {
		return nil, err
	}
	defer t.close()
	var large filetable.File
	var some []filetable.File // with content
	for _, f := range files {
		if f.Type == filetable.TypeReg && f.Size > 0 {
			some = append(some, f)
			if f.Size > large.Size {
				large = f
			}
		}
	}
	if len(some) == 0 {
		return nil, nil
	}
	for _, f := range []filetable.File{large, some[rand.IntN(len(some))]} {
		if what := t.differs(f); what != "" {
			return []Problem{{f.Path, what}}, nil
		}
	}
	return nil, nil
}

// Bare returns the first non-empty regular file below dir as a problem if it is not a stub. Without
// a table, this detects stubs that have lost their attributes.
func Bare(dir string) (problems []Problem, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		file, err := root.Open(p)
		if err != nil {
			return err
		}
		defer file.Close()
		fi, err := file.Stat()
		if err != nil || fi.Size() == 0 {
			return err
		}
		if _, err := unix.Fgetxattr(int(file.Fd()), xattrRedirect, nil); err != nil || !xattrIs(file, xattrMetacopy, "") {
			problems = []Problem{{p, "does not name its object and reads as zeros"}}
		}
		return fs.SkipAll
	})
	return problems, err
}

// expect fills dirs with the directories of files and returns all expected paths. It returns
// errdefs.ErrInvalidArgument for a path that leads outside.
func (t *tree) expect(files []filetable.File) (map[string]bool, error) {
	want := map[string]bool{}
	t.dirs = map[string]attr{".": {mode: defaultDirMode, mtime: time.Unix(0, 0)}}
	for _, f := range files {
		if !fs.ValidPath(f.Path) || f.Path == "." {
			return nil, fmt.Errorf("path %q: %w", f.Path, errdefs.ErrInvalidArgument)
		}
		want[f.Path] = true
		for d := path.Dir(f.Path); ; d = path.Dir(d) {
			if _, ok := t.dirs[d]; ok {
				break
			}
			t.dirs[d] = t.dirs["."]
		}
	}
	for _, f := range files {
		if f.Type == filetable.TypeDir {
			t.dirs[f.Path] = attrOf(f)
		}
	}
	for d := range t.dirs {
		want[d] = true
	}
	return want, nil
}

// extra calls f for each path that is not in want; for a directory once.
func (t *tree) extra(want map[string]bool, f func(p string) error) error {
	return fs.WalkDir(t.root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if want[p] {
			return nil
		}
		if err := f(p); err != nil || !d.IsDir() {
			return err
		}
		return fs.SkipDir
	})
}

// differs describes how a file, not a directory, differs from the table, or returns "".
func (t *tree) differs(f filetable.File) string {
	fi, err := t.root.Lstat(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return "is missing"
	}
	if err != nil {
		return err.Error()
	}
	if t.backend == Links && fi.Mode().IsRegular() && f.Size > 0 {
		var obj unix.Stat_t
		err := unix.Fstatat(int(t.objects.Fd()), t.Name(f.Digest), &obj, unix.AT_SYMLINK_NOFOLLOW)
		switch {
		case err == nil && isInode(fi, obj):
			return ""
		case err == nil && f.Size > maxCopy:
			return "is not a link to its object"
		case err != nil && fi.Size() == f.Size:
			return "" // no object to compare with
		}
	}
	if what := t.wrong(f, fi); what != "" {
		return what
	}
	a := attrOf(f)
	if f.Type == filetable.TypeSymlink {
		a.mode = fs.ModePerm
	}
	return attrDiffers(fi, a)
}

// isRight reports whether f is present, without comparing all attributes and content.
func (t *tree) isRight(f filetable.File) bool {
	fi, err := t.root.Lstat(f.Path)
	return err == nil && t.wrong(f, fi) == ""
}

// wrong describes why fi, the file at the path of f, must be replaced, or returns "": it has
// another type, size or target, has other hard links, or its content is not where it should be.
func (t *tree) wrong(f filetable.File, fi fs.FileInfo) string {
	if f.Type == filetable.TypeSymlink {
		if fi.Mode()&fs.ModeSymlink == 0 {
			return "is not a symbolic link"
		}
		if target, err := t.root.Readlink(f.Path); err != nil || target != f.Target {
			return fmt.Sprintf("points to %q instead of %q", target, f.Target)
		}
		return ""
	}
	switch n := fi.Sys().(*syscall.Stat_t).Nlink; {
	case !fi.Mode().IsRegular():
		return "is not a regular file"
	case fi.Size() != f.Size:
		return fmt.Sprintf("has %d bytes instead of %d", fi.Size(), f.Size)
	case n != 1:
		return fmt.Sprintf("has %d hard links", n)
	}
	file, err := t.root.Open(f.Path)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	if t.backend == Stubs && f.Size > 0 {
		if !xattrIs(file, xattrMetacopy, "") || !xattrIs(file, xattrRedirect, t.redirect(f)) {
			return "does not name its object and reads as zeros or as another file"
		}
		return ""
	}
	if _, err := unix.Fgetxattr(int(file.Fd()), xattrMetacopy, nil); err == nil {
		return "names an object but has its own content"
	}
	return ""
}

// isInode reports whether fi is the file of an object.
func isInode(fi fs.FileInfo, obj unix.Stat_t) bool {
	st := fi.Sys().(*syscall.Stat_t)
	return st.Ino == obj.Ino && st.Dev == obj.Dev
}

func (t *tree) dirDiffers(d string, a attr) string {
	fi, err := t.root.Lstat(d)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "is missing"
	case err != nil:
		return err.Error()
	case !fi.IsDir():
		return "is not a directory"
	}
	return attrDiffers(fi, a)
}

// attrDiffers compares the attributes that all files have. A file system may store times in seconds
// only.
func attrDiffers(fi fs.FileInfo, a attr) string {
	st := fi.Sys().(*syscall.Stat_t)
	got := fi.ModTime()
	switch {
	case fi.Mode().Perm() != a.mode:
		return fmt.Sprintf("has mode %v instead of %v", fi.Mode().Perm(), a.mode)
	case !got.Equal(a.mtime) && !got.Equal(a.mtime.Truncate(time.Second)):
		return fmt.Sprintf("has time %v instead of %v", got.UTC(), a.mtime.UTC())
	case st.Uid != a.uid || st.Gid != a.gid:
		return fmt.Sprintf("belongs to user %d and group %d instead of %d and %d", st.Uid, st.Gid, a.uid, a.gid)
	}
	return ""
}

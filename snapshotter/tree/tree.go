package tree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// A Backend is how files get their content.
type Backend string

// The backends. See the package documentation.
const (
	Stubs Backend = "stubs" // metadata only; the content is in the objects
	Links Backend = "links" // hard links to the objects
)

// Objects provide the content of files, by digest.
type Objects struct {
	Dir  string                               // directory of the objects
	Name func(d digest.Digest) string         // path of an object below Dir, without a leading slash
	Size func(d digest.Digest) (int64, error) // in bytes, of an object that can be read, complete or not
}

// Usage is the disk usage of a tree, without the objects.
type Usage struct {
	Size   int64 // bytes
	Inodes int64
}

const (
	// The extended attributes of a stub. For a file with the first, overlayfs reads the content
	// from the data-only lower layer, at the path in the second.
	// https://github.com/torvalds/linux/blob/v6.5/Documentation/filesystems/overlayfs.rst
	xattrMetacopy = "trusted.overlay.metacopy"
	xattrRedirect = "trusted.overlay.redirect"

	// maxCopy is the size of the largest file that is copied, not linked, if its mode differs from
	// that of its object.
	maxCopy = 1 << 20 // 1 MiB

	// tempName is the name of a new file before it replaces another. Paths of a table have no
	// control characters.
	tempName = ".new\x01"

	// defaultDirMode is the mode of directories that are not in the table.
	defaultDirMode fs.FileMode = 0o755

	// statBlock is the unit of st_blocks in bytes, on every file system.
	statBlock = 512
)

// A tree is the directory of a snapshot while its files are made. All access goes through os.Root,
// so that no path of a table leads outside.
type tree struct {
	Objects
	root    *os.Root
	objects *os.File // directory
	backend Backend

	dirs   map[string]dirAttr // of every directory, "." for the top
	parent *os.File           // the last result of openParent
	sync   []string           // files whose inodes are not yet durable
	usage  Usage
}

type dirAttr struct {
	mode  fs.FileMode
	mtime time.Time
}

// Show makes dir contain exactly the files, which may be in any order, with their content from o.
// Correct files stay, others are replaced. The result is durable on return.
//
// It returns errdefs.ErrInvalidArgument for a path that leads outside or is both file and
// directory, and errdefs.ErrDataLoss if an object and its file differ in size.
func Show(ctx context.Context, dir string, o Objects, b Backend, files []filetable.File) (Usage, error) {
	t, err := open(dir, o, b)
	if err != nil {
		return Usage{}, err
	}
	defer t.close()
	want, err := t.expect(files)
	if err != nil {
		return Usage{}, err
	}
	if err := t.extra(want, t.root.RemoveAll); err != nil { // before the times of directories are set
		return Usage{}, err
	}
	dirs := slices.Sorted(maps.Keys(t.dirs)) // "a" before "a/b"
	for _, d := range dirs {
		if err := t.mkdir(d); err != nil {
			return Usage{}, err
		}
	}
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return Usage{}, err
		}
		if err := t.put(f); err != nil {
			return Usage{}, fmt.Errorf("show %q: %w", f.Path, err)
		}
	}
	err = t.finish(ctx, dirs)
	return t.usage, err
}

func open(dir string, o Objects, b Backend) (*tree, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	objects, err := os.Open(o.Dir)
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return &tree{Objects: o, root: root, objects: objects, backend: b}, nil
}

func (t *tree) close() error {
	err := errors.Join(t.objects.Close(), t.root.Close())
	if t.parent != nil {
		err = errors.Join(err, t.parent.Close())
	}
	return err
}

// put makes the file f, in an existing directory.
func (t *tree) put(f filetable.File) error {
	switch f.Type {
	case filetable.TypeDir:
		return nil
	case filetable.TypeSymlink:
		return t.putSymlink(f)
	case filetable.TypeReg:
		return t.putReg(f)
	default:
		return fmt.Errorf("type %q: %w", f.Type, errdefs.ErrInvalidArgument)
	}
}

// mkdir makes a directory in an existing one. finish sets its attributes.
func (t *tree) mkdir(dir string) error {
	err := t.root.Mkdir(dir, defaultDirMode)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	fi, err := t.root.Lstat(dir)
	if err == nil && !fi.IsDir() {
		err = fmt.Errorf("directory %q is also a file: %w", dir, errdefs.ErrInvalidArgument)
	}
	return err
}

func (t *tree) putSymlink(f filetable.File) error {
	if !t.isRight(f) {
		err := t.replace(f.Path, func(p string) error { return t.root.Symlink(f.Target, p) })
		if err != nil {
			return err
		}
	}
	if err := t.root.Lchown(f.Path, 0, 0); err != nil {
		return err
	}
	if err := t.setLinkTime(f); err != nil {
		return err
	}
	return t.count(f.Path)
}

// setLinkTime sets the mtime of a symbolic link.
func (t *tree) setLinkTime(f filetable.File) error {
	dir, err := t.openParent(f.Path)
	if err != nil {
		return err
	}
	ts, err := unix.TimeToTimespec(mtimeOf(f))
	if err != nil {
		return err
	}
	return unix.UtimesNanoAt(int(dir.Fd()), path.Base(f.Path), []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
}

func (t *tree) putReg(f filetable.File) error {
	if f.Size == 0 {
		return t.putOwn(f, t.isRight(f), func(*os.File) error { return nil })
	}
	obj, err := t.object(f)
	if err != nil {
		return err
	}
	if t.backend == Stubs {
		return t.putStub(f)
	}
	if fs.FileMode(obj.Mode)&fs.ModePerm != permOf(f) && f.Size <= maxCopy {
		return t.putCopy(f)
	}
	err = t.putLink(f, obj)
	if errors.Is(err, unix.EMLINK) && f.Size <= maxCopy {
		return t.putCopy(f) // ext4 has at most 65000 links to a file
	}
	return err
}

// object returns the stat data of the object of f, empty for stubs. It checks the size: a table
// with a wrong size would show bytes that do not exist.
func (t *tree) object(f filetable.File) (unix.Stat_t, error) {
	var st unix.Stat_t
	if t.backend == Stubs {
		size, err := t.Size(f.Digest)
		if err == nil && size != f.Size {
			err = fmt.Errorf("object %s has %d bytes, its file %d: %w", f.Digest, size, f.Size, errdefs.ErrDataLoss)
		}
		return st, err
	}
	if err := unix.Fstatat(int(t.objects.Fd()), t.Name(f.Digest), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return st, fmt.Errorf("object %s: %w", f.Digest, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != f.Size {
		return st, fmt.Errorf("object %s has %d bytes, its file %d: %w", f.Digest, st.Size, f.Size, errdefs.ErrDataLoss)
	}
	return st, nil
}

// putStub makes a file without data that names its object.
func (t *tree) putStub(f filetable.File) error {
	return t.putOwn(f, t.isRight(f), func(file *os.File) error {
		if err := file.Truncate(f.Size); err != nil {
			return err
		}
		if err := unix.Fsetxattr(int(file.Fd()), xattrRedirect, []byte(t.redirect(f)), 0); err != nil {
			return fmt.Errorf("set %s: %w", xattrRedirect, err)
		}
		if err := unix.Fsetxattr(int(file.Fd()), xattrMetacopy, nil, 0); err != nil {
			return fmt.Errorf("set %s: %w", xattrMetacopy, err)
		}
		return nil
	})
}

// putCopy makes a file with a copy of the bytes of its object.
func (t *tree) putCopy(f filetable.File) error {
	fd, err := unix.Openat(int(t.objects.Fd()), t.Name(f.Digest), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open object %s: %w", f.Digest, err)
	}
	obj := os.NewFile(uintptr(fd), "object")
	defer obj.Close()
	want, err := io.ReadAll(io.LimitReader(obj, maxCopy))
	if err != nil {
		return fmt.Errorf("read object %s: %w", f.Digest, err)
	}
	right := t.isRight(f)
	if right {
		got, err := t.root.ReadFile(f.Path)
		right = err == nil && bytes.Equal(got, want)
	}
	return t.putOwn(f, right, func(file *os.File) error {
		_, err := file.Write(want)
		return err
	})
}

// putOwn makes a regular file with its own inode and sets its attributes. It calls fill for the
// content unless the present file is right.
func (t *tree) putOwn(f filetable.File, right bool, fill func(*os.File) error) error {
	t.sync = append(t.sync, f.Path)
	if right {
		file, err := t.root.Open(f.Path)
		if err != nil {
			return err
		}
		return errors.Join(t.finishFile(f, file), file.Close())
	}
	return t.replace(f.Path, func(p string) error {
		file, err := t.root.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		if err = fill(file); err == nil {
			err = t.finishFile(f, file)
		}
		return errors.Join(err, file.Close())
	})
}

// finishFile sets the attributes of a file and counts it. It does so by its descriptor: a model can have thousands
// of files, and os.Root opens each directory of a path for each operation.
func (t *tree) finishFile(f filetable.File, file *os.File) error {
	ts, err := unix.TimeToTimespec(mtimeOf(f))
	if err != nil {
		return err
	}
	if err := errors.Join(file.Chown(0, 0), file.Chmod(permOf(f))); err != nil {
		return err
	}
	// With AT_EMPTY_PATH, utimensat(2) needs Linux 5.8.
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", file.Fd()), []unix.Timespec{ts, ts}, 0); err != nil {
		return fmt.Errorf("set the time: %w", err)
	}
	fi, err := file.Stat()
	if err == nil {
		t.add(fi)
	}
	return err
}

// putLink makes a hard link to the object. The link shares the attributes of the object.
func (t *tree) putLink(f filetable.File, obj unix.Stat_t) error {
	if fi, err := t.root.Lstat(f.Path); err == nil && isInode(fi, obj) {
		return nil
	}
	return t.replace(f.Path, func(p string) error {
		dir, err := t.openParent(p)
		if err != nil {
			return err
		}
		if err := unix.Linkat(int(t.objects.Fd()), t.Name(f.Digest), int(dir.Fd()), path.Base(p), 0); err != nil {
			return fmt.Errorf("link object %s: %w", f.Digest, err)
		}
		return nil
	})
}

// replace calls create with path or, if path exists, with a temporary name in the same directory
// that then atomically replaces path.
func (t *tree) replace(p string, create func(p string) error) error {
	fi, err := t.root.Lstat(p)
	if errors.Is(err, fs.ErrNotExist) {
		return create(p)
	}
	if err != nil {
		return err
	}
	if fi.IsDir() {
		return fmt.Errorf("file %q is also a directory: %w", p, errdefs.ErrInvalidArgument)
	}
	temp := path.Join(path.Dir(p), tempName) // extra has removed what a crash left
	if err := create(temp); err != nil {
		return err
	}
	return t.root.Rename(temp, p)
}

// openParent returns the directory of path. It stays open until the next call.
func (t *tree) openParent(p string) (*os.File, error) {
	dir, err := t.root.Open(path.Dir(p))
	if err != nil {
		return nil, err
	}
	if t.parent != nil {
		t.parent.Close() // opened for reading
	}
	t.parent = dir
	return dir, nil
}

// count adds the disk usage of path to that of the tree.
func (t *tree) count(path string) error {
	fi, err := t.root.Lstat(path)
	if err != nil {
		return err
	}
	t.add(fi)
	return nil
}

func (t *tree) add(fi fs.FileInfo) {
	t.usage.Size += fi.Sys().(*syscall.Stat_t).Blocks * statBlock
	t.usage.Inodes++
}

// Up to syncTogether files and directories are synced in parallel, so that they share writes of the
// journal. From syncAll on, the whole file system is synced at once, which is faster but also waits
// for other writers.
const (
	syncTogether = 32
	syncAll      = 512
)

// finish sets the attributes of directories, deepest first, and makes all files and directories
// durable. dirs are sorted.
func (t *tree) finish(ctx context.Context, dirs []string) error {
	for _, d := range slices.Backward(dirs) {
		if d != "." { // sorts between other names
			if err := t.finishDir(d); err != nil {
				return err
			}
		}
	}
	if err := t.finishDir("."); err != nil {
		return err
	}
	all := append(t.sync, dirs...)
	if len(all) >= syncAll {
		return t.syncfs()
	}
	var g errgroup.Group
	g.SetLimit(syncTogether)
	for _, p := range all {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return syncPath(t.root, p)
		})
	}
	return g.Wait()
}

func (t *tree) syncfs() error {
	top, err := t.root.Open(".")
	if err != nil {
		return err
	}
	defer top.Close()
	return unix.Syncfs(int(top.Fd()))
}

// finishDir sets the attributes of a directory.
func (t *tree) finishDir(dir string) error {
	a := t.dirs[dir]
	if err := t.root.Chown(dir, 0, 0); err != nil {
		return err
	}
	if err := t.root.Chmod(dir, a.mode); err != nil {
		return err
	}
	if err := t.root.Chtimes(dir, a.mtime, a.mtime); err != nil {
		return err
	}
	return t.count(dir)
}

// permOf returns the permissions of f, without setuid, setgid and sticky.
func permOf(f filetable.File) fs.FileMode { return fs.FileMode(f.Mode) & fs.ModePerm }

// mtimeOf returns the mtime of f. A missing time, or one that does not fit into 64 bits of
// nanoseconds, is the epoch.
func mtimeOf(f filetable.File) time.Time {
	if f.ModTime.IsZero() || f.ModTime.Year() < 1901 || f.ModTime.Year() > 2261 {
		return time.Unix(0, 0)
	}
	return f.ModTime
}

// redirect returns the path of the object in a stub of f.
func (t *tree) redirect(f filetable.File) string { return "/" + t.Name(f.Digest) }

// xattrIs reports whether an extended attribute has the value.
func xattrIs(file *os.File, name, value string) bool {
	p := make([]byte, len(value)+1)
	n, err := unix.Fgetxattr(int(file.Fd()), name, p)
	return err == nil && string(p[:n]) == value
}

// syncPath makes a file, or the entries of a directory, durable.
func syncPath(root *os.Root, p string) error {
	f, err := root.Open(p)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

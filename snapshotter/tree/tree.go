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
	"runtime"
	"slices"
	"strconv"
	"sync"
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

	// tempName is the beginning of the name of a new file before it replaces another; the number of the part is the
	// rest. Paths of a table have no control characters.
	tempName = ".new\x01"

	// partFiles is the number of files that one goroutine makes.
	partFiles = 256

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
	top     *os.File // the directory of root
	objects *os.File // directory
	backend Backend

	part int // of the files, see putAll

	dirs  map[string]attr // of every directory, "." for the top
	sync  []string        // files whose inodes are not yet durable
	usage Usage

	parent     *os.File // the last result of openParent
	parentPath string
}

// attr are the attributes of a file.
type attr struct {
	mode     fs.FileMode
	uid, gid uint32
	mtime    time.Time
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
	if err := t.putAll(ctx, files); err != nil {
		return Usage{}, err
	}
	err = t.finish(ctx, dirs)
	return t.usage, err
}

// putAll makes all files. Parts of them are made concurrently, since nearly all that a file costs is processor time
// of the kernel, and there can be thousands.
func (t *tree) putAll(ctx context.Context, files []filetable.File) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	var mu sync.Mutex // guards sync and usage of t
	part := 0
	for some := range slices.Chunk(files, partFiles) {
		p := &tree{Objects: t.Objects, root: t.root, objects: t.objects, backend: t.backend, part: part}
		part++
		g.Go(func() error {
			defer p.closeParent()
			for _, f := range some {
				if err := ctx.Err(); err != nil {
					return err
				}
				if err := p.put(f); err != nil {
					return fmt.Errorf("show %q: %w", f.Path, err)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			t.sync = append(t.sync, p.sync...)
			t.usage.Size += p.usage.Size
			t.usage.Inodes += p.usage.Inodes
			return nil
		})
	}
	return g.Wait()
}

func open(dir string, o Objects, b Backend) (*tree, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	top, err := root.Open(".")
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	objects, err := os.Open(o.Dir)
	if err != nil {
		return nil, errors.Join(err, top.Close(), root.Close())
	}
	return &tree{Objects: o, root: root, top: top, objects: objects, backend: b}, nil
}

func (t *tree) close() error {
	t.closeParent()
	return errors.Join(t.objects.Close(), t.top.Close(), t.root.Close())
}

func (t *tree) closeParent() {
	if t.parent != nil {
		t.parent.Close() // opened for reading
	}
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
	if err := t.root.Lchown(f.Path, int(f.UID), int(f.GID)); err != nil {
		return err
	}
	if err := t.setTime(f, f.Path); err != nil {
		return err
	}
	return t.count(f.Path)
}

// setTime sets the mtime of f, a file or a symbolic link at path p.
func (t *tree) setTime(f filetable.File, p string) error {
	dir, err := t.openParent(p)
	if err != nil {
		return err
	}
	ts, err := unix.TimeToTimespec(mtimeOf(f))
	if err != nil {
		return err
	}
	if err := unix.UtimesNanoAt(int(dir.Fd()), path.Base(p), []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set the time: %w", err)
	}
	return nil
}

func (t *tree) putReg(f filetable.File) error {
	if f.Size == 0 {
		return t.putOwn(f, t.isRight, func(*os.File) error { return nil })
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
	return t.putOwn(f, t.isRight, func(file *os.File) error {
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
	right := func(f filetable.File) bool {
		got, err := t.root.ReadFile(f.Path)
		return err == nil && bytes.Equal(got, want) && t.isRight(f)
	}
	return t.putOwn(f, right, func(file *os.File) error {
		_, err := file.Write(want)
		return err
	})
}

// putOwn makes a regular file with its own inode and sets its attributes. It calls fill for the
// content unless the present file is right. Whether there is one is found out by creating it: mostly there is none,
// and a model can have thousands of files.
func (t *tree) putOwn(f filetable.File, right func(filetable.File) bool, fill func(*os.File) error) error {
	t.sync = append(t.sync, f.Path)
	create := func(p string) error {
		file, err := t.open(p, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, permOf(f))
		if err != nil {
			return err
		}
		if err = fill(file); err == nil {
			err = t.finishFile(f, p, file)
		}
		return errors.Join(err, file.Close())
	}
	err := create(f.Path)
	switch {
	case !errors.Is(err, fs.ErrExist):
		return err
	case !right(f):
		return t.replace(f.Path, create)
	}
	file, err := t.open(f.Path, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(t.finishFile(f, f.Path, file), file.Close())
}

// open opens a file in an existing directory, as os.Root.OpenFile, but no symbolic link. os.Root opens each directory
// of a path for each operation.
func (t *tree) open(p string, flag int, mode fs.FileMode) (*os.File, error) {
	dir, err := t.openParent(p)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Openat(int(dir.Fd()), path.Base(p), flag|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(mode))
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: p, Err: err}
	}
	return os.NewFile(uintptr(fd), p), nil
}

// finishFile sets the attributes of f, which is open at path p, and counts it.
func (t *tree) finishFile(f filetable.File, p string, file *os.File) error {
	fi, err := file.Stat()
	if err != nil {
		return err
	}
	if st := fi.Sys().(*syscall.Stat_t); st.Uid != f.UID || st.Gid != f.GID {
		if err := file.Chown(int(f.UID), int(f.GID)); err != nil {
			return err
		}
	}
	if fi.Mode() != permOf(f) { // the umask is unknown
		if err := file.Chmod(permOf(f)); err != nil {
			return err
		}
	}
	if err := t.setTime(f, p); err != nil {
		return err
	}
	t.add(fi)
	return nil
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
	temp := path.Join(path.Dir(p), tempName+strconv.Itoa(t.part)) // extra has removed what a crash left
	if err := create(temp); err != nil {
		return err
	}
	return t.root.Rename(temp, p)
}

// openParent returns the directory of path. It stays open until the next call for another directory.
func (t *tree) openParent(p string) (*os.File, error) {
	name := path.Dir(p)
	if t.parent != nil && t.parentPath == name {
		return t.parent, nil
	}
	dir, err := t.root.Open(name)
	if err != nil {
		return nil, err
	}
	t.closeParent()
	t.parent, t.parentPath = dir, name
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

// attrOf returns the attributes of f.
func attrOf(f filetable.File) attr { return attr{permOf(f), f.UID, f.GID, mtimeOf(f)} }

// permOf returns the permissions of f, without setuid, setgid and sticky.
func permOf(f filetable.File) fs.FileMode { return fs.FileMode(f.Mode) & fs.ModePerm }

// mtimeOf returns the mtime of f. A missing time, or one that does not fit into 64 bits of
// nanoseconds, is the epoch, as is one before 1902: file systems have none before December 1901.
func mtimeOf(f filetable.File) time.Time {
	if f.ModTime.IsZero() || f.ModTime.Year() < 1902 || f.ModTime.Year() > 2261 {
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

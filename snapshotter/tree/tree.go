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
	Stubs Backend = "stubs" // metadata over the objects
	Links Backend = "links" // hard links to the objects
)

// Objects have the content of files, by digest.
type Objects struct {
	Dir  string                               // holds them
	Name func(d digest.Digest) string         // path of an object below Dir, without a leading slash
	Size func(d digest.Digest) (int64, error) // in bytes, of one that can be read, complete or not
}

// Usage is what a tree takes on disk, without the objects.
type Usage struct {
	Size   int64 // bytes
	Inodes int64
}

const (
	// The attributes of a stub. overlayfs takes the content of a file with the first from
	// the data-only lower layer, at the path in the second.
	// https://github.com/torvalds/linux/blob/v6.5/Documentation/filesystems/overlayfs.rst
	xattrMetacopy = "trusted.overlay.metacopy"
	xattrRedirect = "trusted.overlay.redirect"

	// maxCopy is the size in bytes of the largest file that is copied rather than linked
	// when its mode is not that of its object.
	maxCopy = 1 << 20 // 1 MiB

	// tempName is where a file is made that takes the place of another. No path of a table
	// has a control character.
	tempName = ".new\x01"

	// defaultDirMode is the mode of a directory that the table does not have.
	defaultDirMode fs.FileMode = 0o755

	// statBlock is the unit of st_blocks in bytes, whatever the file system.
	statBlock = 512
)

// A tree is the directory of a snapshot while files are shown in it. All access below it
// goes through os.Root, so that no path of a table leads out.
type tree struct {
	Objects
	root    *os.Root
	objects *os.File // directory
	backend Backend

	dirs   map[string]dirAttr // of every directory, "." for the top
	parent *os.File           // the directory last asked of openParent
	sync   []string           // files whose inodes are not durable yet
	usage  Usage
}

type dirAttr struct {
	mode  fs.FileMode
	mtime time.Time
}

// Show makes dir have the files, in any order, and nothing else, with their content from o. Files that
// are there and well stay, others are replaced. All is durable on return.
//
// It returns errdefs.ErrInvalidArgument for a path that leads out or is two things, and
// errdefs.ErrDataLoss if an object has another size than its file.
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
	if err := t.extra(want, t.root.RemoveAll); err != nil { // before directories get their times
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

// put makes the tree have the file f, whose directory is there.
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

// mkdir makes a directory of which those above it are there. Its attributes are set by finish.
func (t *tree) mkdir(dir string) error {
	err := t.root.Mkdir(dir, defaultDirMode)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	fi, err := t.root.Lstat(dir)
	if err == nil && !fi.IsDir() {
		err = fmt.Errorf("directory %q is a file as well: %w", dir, errdefs.ErrInvalidArgument)
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

// setLinkTime sets the mtime of a symbolic link itself.
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

// object returns what the file system knows of the object of f; nothing for a stub of a file that
// is not complete. A table that lies about the size of a file would show bytes that are not there.
func (t *tree) object(f filetable.File) (unix.Stat_t, error) {
	var st unix.Stat_t
	if t.backend == Stubs {
		size, err := t.Size(f.Digest)
		if err == nil && size != f.Size {
			err = fmt.Errorf("%s has %d bytes, its file %d: %w", f.Digest, size, f.Size, errdefs.ErrDataLoss)
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

// putCopy makes a file with the bytes of its object.
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

// putOwn makes a regular file with an inode of its own: by fill, unless the one that is there is
// right. It sets the attributes in any case.
func (t *tree) putOwn(f filetable.File, right bool, fill func(*os.File) error) error {
	if !right {
		err := t.replace(f.Path, func(p string) error {
			file, err := t.root.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return err
			}
			return errors.Join(fill(file), file.Close())
		})
		if err != nil {
			return err
		}
	}
	if err := t.root.Lchown(f.Path, 0, 0); err != nil {
		return err
	}
	if err := t.root.Chmod(f.Path, permOf(f)); err != nil {
		return err
	}
	if err := t.root.Chtimes(f.Path, mtimeOf(f), mtimeOf(f)); err != nil {
		return err
	}
	t.sync = append(t.sync, f.Path)
	return t.count(f.Path)
}

// putLink makes a hard link to the object. The attributes are the object's: a link has none
// of its own.
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

// replace calls create with path, or, if there is something at path, with another name in
// the same directory that then takes its place at once.
func (t *tree) replace(p string, create func(p string) error) error {
	fi, err := t.root.Lstat(p)
	if errors.Is(err, fs.ErrNotExist) {
		return create(p)
	}
	if err != nil {
		return err
	}
	if fi.IsDir() {
		return fmt.Errorf("file %q is a directory as well: %w", p, errdefs.ErrInvalidArgument)
	}
	temp := path.Join(path.Dir(p), tempName) // what a crash left of one is not expected
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
		t.parent.Close() // only read from
	}
	t.parent = dir
	return dir, nil
}

// count adds what path takes on disk to the usage of the tree.
func (t *tree) count(path string) error {
	fi, err := t.root.Lstat(path)
	if err != nil {
		return err
	}
	t.usage.Size += fi.Sys().(*syscall.Stat_t).Blocks * statBlock
	t.usage.Inodes++
	return nil
}

// Files and directories are made durable at the same time, syncTogether of them: one after the other each waits
// for a write of the journal, which they share like that. From syncAll on the whole file system is made durable
// at once, which is faster still, but waits for what others write.
const (
	syncTogether = 32
	syncAll      = 512
)

// finish sets the attributes of directories, deepest first, and makes them and all files durable. dirs are sorted.
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

// permOf returns the mode of f: permissions alone, never setuid, setgid or sticky.
func permOf(f filetable.File) fs.FileMode { return fs.FileMode(f.Mode) & fs.ModePerm }

// mtimeOf returns the mtime of f. No time, or one that does not fit into 64 bits of
// nanoseconds, is the epoch.
func mtimeOf(f filetable.File) time.Time {
	if f.ModTime.IsZero() || f.ModTime.Year() < 1901 || f.ModTime.Year() > 2261 {
		return time.Unix(0, 0)
	}
	return f.ModTime
}

// redirect returns what a stub of f names its object by.
func (t *tree) redirect(f filetable.File) string { return "/" + t.Name(f.Digest) }

// xattrIs says whether an extended attribute is there and has the value.
func xattrIs(file *os.File, name, value string) bool {
	p := make([]byte, len(value)+1)
	n, err := unix.Fgetxattr(int(file.Fd()), name, p)
	return err == nil && string(p[:n]) == value
}

// syncPath makes a file durable, or the entries of a directory.
func syncPath(root *os.Root, p string) error {
	f, err := root.Open(p)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

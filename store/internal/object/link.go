package object

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// Methods to make a local file an object.
const (
	// LinkClone shares the blocks of the file: the object has its own inode, and later writes to
	// one are not seen in the other.
	LinkClone = "reflink"

	// LinkHard is a hard link. It is used only for files that no one but root can write to and that
	// have no other link, see linkable: otherwise a verified object could change.
	LinkHard = "link"

	// LinkNone means that the bytes must be copied.
	LinkNone = "copy"
)

// Link makes a file the object d, and returns how; LinkNone if that is impossible. The digest is
// computed over the new file after it shares the bytes, so earlier content does not count. progress
// is called with the number of bytes hashed so far. Link returns a *verify.Error for a file with
// other bytes or another size. private is meta.File.Private.
func (s *Objects) Link(ctx context.Context, src *os.File, d digest.Digest, size int64, private []string, progress func(n int64)) (way string, err error) {
	info, err := src.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file: %w", src.Name(), errdefs.ErrInvalidArgument)
	}
	if err := verify.Compare(d, d, size, info.Size()); err != nil {
		return "", err
	}
	name := s.temp()
	// Missing after the rename, but present if the object is already the same inode.
	defer s.o.Root.Remove(name)
	way = LinkClone
	f, err := s.clone(src, name)
	if f == nil && err == nil {
		way = LinkHard
		f, err = s.hardLink(src, name)
	}
	if f == nil || err != nil {
		return LinkNone, err
	}
	defer f.Close()
	if err := hash(ctx, f, d, size, progress); err != nil {
		return "", err
	}
	if err := f.Sync(); err != nil {
		return "", err
	}
	return way, s.publishFile(meta.File{Staged: name, Digest: d, Size: size, Private: private})
}

// clone makes a file that shares the blocks of src; nil if the file system does not support that.
func (s *Objects) clone(src *os.File, name string) (*os.File, error) {
	f, err := s.o.Root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, Mode)
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlFileClone(int(f.Fd()), int(src.Fd())); err != nil {
		return nil, errors.Join(f.Close(), s.o.Root.Remove(name))
	}
	return f, nil
}

// hardLink makes a hard link to src; nil if that is impossible or unsafe.
func (s *Objects) hardLink(src *os.File, name string) (*os.File, error) {
	if !s.linkable(src) {
		return nil, nil
	}
	dir, err := s.o.Root.Open(filepath.Dir(name))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	// By the open file, not by its path, which may name another file by now.
	if err := unix.Linkat(int(src.Fd()), "", int(dir.Fd()), filepath.Base(name), unix.AT_EMPTY_PATH); err != nil {
		return nil, nil
	}
	return s.o.Root.Open(name)
}

// linkable reports whether a hard link to a file can be an object: the file belongs to root and has
// the mode of an object, so that no other user may open it for writing; no process has it open for
// writing; and it has one link, so that it is not, for example, a log that root continues. Root can
// write to the store's files in any case. An access control list with write access shows in the
// group bits.
func (s *Objects) linkable(f *os.File) bool {
	var st unix.Stat_t
	own, err := s.o.Root.Stat(".")
	if unix.Fstat(int(f.Fd()), &st) != nil || err != nil {
		return false
	}
	if st.Uid != 0 || st.Gid != 0 || st.Mode != syscall.S_IFREG|Mode || st.Nlink != 1 || st.Dev != own.Sys().(*syscall.Stat_t).Dev {
		return false
	}
	// The kernel grants a read lease only for a file that is not open for writing.
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return false
	}
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	return err == nil
}

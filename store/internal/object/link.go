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

// The ways in which a file of somebody else becomes an object.
const (
	// LinkClone shares the blocks of the file: the object has an inode of its own, and what is
	// written to one of the two is not seen in the other.
	LinkClone = "reflink"

	// LinkHard is a second name of the file. It is only for files that nobody but root can
	// write to and that have no other name, see linkable: otherwise a verified object could
	// change.
	LinkHard = "link"

	// LinkNone says that the bytes have to be copied.
	LinkNone = "copy"
)

// Link makes a file the object d, and says how; LinkNone if that is not possible. The digest is
// computed over the object-to-be, after it has come to share the bytes: what was in the file before
// does not count. progress is called with the bytes that were hashed so far. Link returns a *verify.Error
// for a file with other bytes or another size. private is File.Private.
func (s *Objects) Link(ctx context.Context, src *os.File, d digest.Digest, size int64, private []string, progress func(n int64)) (way string, err error) {
	info, err := src.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no regular file: %w", src.Name(), errdefs.ErrInvalidArgument)
	}
	if err := verify.Compare(d, d, size, info.Size()); err != nil {
		return "", err
	}
	name := s.temp()
	// It is gone after the rename, but not if the object is the same inode already.
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
	return way, s.Publish([]File{{From: name, Digest: d, Size: size, Private: private}}, meta.Arrival{})
}

// clone makes a file that shares the blocks of src; nil if the file system can not do that.
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

// hardLink gives src a second name; nil if that is not possible or not safe.
func (s *Objects) hardLink(src *os.File, name string) (*os.File, error) {
	if !s.linkable(src) {
		return nil, nil
	}
	dir, err := s.o.Root.Open(filepath.Dir(name))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	// By the open file and not by its path, where another file can be by now.
	if err := unix.Linkat(int(src.Fd()), "", int(dir.Fd()), filepath.Base(name), unix.AT_EMPTY_PATH); err != nil {
		return nil, nil
	}
	return s.o.Root.Open(name)
}

// linkable reports whether a file can be an object under a second name: it belongs to root and has
// the mode of an object, so that nobody else may open it for writing; nobody has it open for
// writing since the time when he may have been allowed to; and it has one name, so that it is
// not also a log, say, that root goes on with. That the store's files can be written to by root is
// so in any case. An access control list that lets others write shows in the bits of the group.
func (s *Objects) linkable(f *os.File) bool {
	var st unix.Stat_t
	own, err := s.o.Root.Stat(".")
	if unix.Fstat(int(f.Fd()), &st) != nil || err != nil {
		return false
	}
	if st.Uid != 0 || st.Gid != 0 || st.Mode != syscall.S_IFREG|Mode || st.Nlink != 1 || st.Dev != own.Sys().(*syscall.Stat_t).Dev {
		return false
	}
	// The kernel gives a read lease only on a file that nobody has open for writing.
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return false
	}
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	return err == nil
}

// LinkWay says how Link would make an object of a file, without doing it.
func (s *Objects) LinkWay(f *os.File) (string, error) {
	name := s.temp()
	c, err := s.clone(f, name)
	switch {
	case err != nil:
		return "", err
	case c != nil:
		return LinkClone, errors.Join(c.Close(), s.o.Root.Remove(name))
	case s.linkable(f):
		return LinkHard, nil
	}
	return LinkNone, nil
}

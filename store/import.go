package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
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

	// LinkNone says that the bytes have to be copied, which is for Hydrate.
	LinkNone = "copy"
)

// LinkOptions say where the files are.
type LinkOptions struct {
	// Open opens the file that should have the bytes of a blob. It is not trusted. An error
	// that is errdefs.ErrNotFound leaves the blob to Hydrate.
	Open func(digest.Digest) (*os.File, error)

	// Progress is that of HydrateOptions. Blobs that are not linked stay "waiting".
	Progress func([]Progress)
}

// Linked says what Link did, in bytes.
type Linked struct {
	Cloned int64 `json:"cloned"` // LinkClone
	Hard   int64 `json:"linked"` // LinkHard
}

// Link makes objects of local files, for those blobs of a table that are files as they are and
// not there yet, as far as that takes no copy. What it leaves out is for Hydrate, with a Fetcher
// that reads the files. The files are not changed; they get a second name at most.
//
// The digest is computed over the object-to-be, after it has come to share the bytes: what was
// in the file before does not count. Link returns a *verify.Error for a file with other bytes or
// another size than the blob.
func (s *Store) Link(ctx context.Context, table digest.Digest, o LinkOptions) (Linked, error) {
	t, err := s.Table(ctx, table)
	if err != nil {
		return Linked{}, err
	}
	l := &linking{s: s, o: o}
	names := map[digest.Digest]string{}
	for _, f := range t.Files {
		if f.Source != nil && f.Source.Blob != "" && names[f.Source.Blob] == "" {
			names[f.Source.Blob] = f.Path
		}
	}
	for _, b := range t.Blobs {
		l.progress = append(l.progress, Progress{Blob: b.Digest, Name: names[b.Digest], Total: b.Size, State: stateWaiting})
	}
	for i, b := range t.Blobs {
		if b.Archive != filetable.ArchiveNone || b.Codec != filetable.CodecNone || b.Size == 0 {
			continue
		}
		if err := l.blob(ctx, i, b); err != nil {
			return l.done, fmt.Errorf("layer %d (%s): %w", b.Layer, b.Digest, err)
		}
	}
	l.report(true)
	return l.done, nil
}

// linking is one run of Link.
type linking struct {
	s    *Store
	o    LinkOptions
	done Linked

	progress []Progress // by blob of the table
	reported time.Time
}

// report calls Progress, if it is time, and protects what is done from the collector.
func (l *linking) report(now bool) {
	if !now && time.Since(l.reported) < progressEvery {
		return
	}
	l.reported = time.Now()
	for _, p := range l.progress {
		if p.State == stateComplete || p.State == statePresent {
			l.s.keep(p.Blob)
		}
	}
	if l.o.Progress != nil {
		l.o.Progress(append([]Progress(nil), l.progress...))
	}
}

// blob links the blob with index i.
func (l *linking) blob(ctx context.Context, i int, b filetable.Blob) error {
	p := &l.progress[i]
	has, err := l.s.hasBlob(b)
	if err != nil {
		return err
	}
	if has {
		p.State, p.Done = statePresent, p.Total
		l.report(false)
		return nil
	}
	f, err := l.o.Open(b.Digest)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	way, err := l.s.linkFile(ctx, f, b, func(n int64) {
		p.State, p.Done = stateVerifying, n
		l.report(false)
	})
	if err != nil || way == LinkNone {
		return err
	}
	p.State, p.Done = stateComplete, p.Total
	if way == LinkClone {
		l.done.Cloned += b.Size
	} else {
		l.done.Hard += b.Size
	}
	l.report(false)
	return nil
}

// linkBuffer is how much is hashed at once, in bytes.
const linkBuffer = 1 << 20

// linkFile makes a file the object of a raw blob, and says how; LinkNone if that is not possible.
func (s *Store) linkFile(ctx context.Context, src *os.File, b filetable.Blob, read func(n int64)) (way string, err error) {
	info, err := src.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no regular file: %w", src.Name(), errdefs.ErrInvalidArgument)
	}
	if err := verify.Compare(b.Digest, b.Digest, b.Size, info.Size()); err != nil {
		return "", err
	}
	name := filepath.Join(partialDir, "bytes-"+randomName()) // a crash leaves it to sweepTemp
	// It is gone after the rename, but not if the object is the same inode already.
	defer s.root.Remove(name)
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
	if err := verifyFile(ctx, f, b, read); err != nil {
		return "", err
	}
	if err := f.Sync(); err != nil {
		return "", err
	}
	return way, s.publish([]publication{{from: name, d: b.Digest, size: b.Size}}, meta.Arrival{})
}

// verifyFile reads a file and returns a *verify.Error if it is not the blob.
func verifyFile(ctx context.Context, f *os.File, b filetable.Blob, read func(n int64)) error {
	sum := blobHash{blob: b, hash: verify.NewHash()}
	buf := make([]byte, linkBuffer)
	for {
		n, err := f.Read(buf)
		sum.Write(buf[:n])
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == io.EOF || sum.n > b.Size:
			return sum.verify()
		case err != nil:
			return err
		}
		read(sum.n)
	}
}

// clone makes a file that shares the blocks of src; nil if the file system can not do that.
func (s *Store) clone(src *os.File, name string) (*os.File, error) {
	f, err := s.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, objectMode)
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlFileClone(int(f.Fd()), int(src.Fd())); err != nil {
		return nil, errors.Join(f.Close(), s.root.Remove(name))
	}
	return f, nil
}

// hardLink gives src a second name; nil if that is not possible or not safe.
func (s *Store) hardLink(src *os.File, name string) (*os.File, error) {
	if !s.linkable(src) {
		return nil, nil
	}
	dir, err := s.root.Open(filepath.Dir(name))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	// By the open file and not by its path, where another file can be by now.
	if err := unix.Linkat(int(src.Fd()), "", int(dir.Fd()), filepath.Base(name), unix.AT_EMPTY_PATH); err != nil {
		return nil, nil
	}
	return s.root.Open(name)
}

// linkable reports whether a file can be an object under a second name: it belongs to root and has
// the mode of an object, so that nobody else may open it for writing; nobody has it open for
// writing since the time when he may have been allowed to; and it has one name, so that it is
// not also a log, say, that root goes on with. That the store's files can be written to by root is
// so in any case. An access control list that lets others write shows in the bits of the group.
func (s *Store) linkable(f *os.File) bool {
	var st, own unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil || unix.Stat(s.dir, &own) != nil {
		return false
	}
	if st.Uid != 0 || st.Gid != 0 || st.Mode != syscall.S_IFREG|objectMode || st.Nlink != 1 || st.Dev != own.Dev {
		return false
	}
	// The kernel gives a read lease only on a file that nobody has open for writing.
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return false
	}
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	return err == nil
}

// LinkWay says how Link would make an object of a file, without doing it.
func (s *Store) LinkWay(f *os.File) (string, error) {
	name := filepath.Join(partialDir, "bytes-"+randomName())
	c, err := s.clone(f, name)
	switch {
	case err != nil:
		return "", err
	case c != nil:
		return LinkClone, errors.Join(c.Close(), s.root.Remove(name))
	case s.linkable(f):
		return LinkHard, nil
	}
	return LinkNone, nil
}

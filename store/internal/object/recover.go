package object

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// An unrecordedFile is a file without a record, which must be hashed before it is an object.
type unrecordedFile struct {
	size int64
	busy chan struct{} // held while the file is hashed
}

// unrecord lists files below objects that have no record.
func (s *Objects) unrecord(files ...meta.Sized) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range files {
		s.unrecorded[f.Digest] = &unrecordedFile{size: f.Size, busy: make(chan struct{}, 1)}
	}
}

// Unrecorded returns the files without a record that are not yet hashed, by digest.
func (s *Objects) Unrecorded() (files []meta.Sized) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d, f := range s.unrecorded {
		files = append(files, meta.Sized{Digest: d, Size: f.size})
	}
	slices.SortFunc(files, func(a, b meta.Sized) int { return strings.Compare(a.Digest.String(), b.Digest.String()) })
	return files
}

// Recover hashes the given files if they are unrecorded, and returns those that became objects.
func (s *Objects) Recover(ctx context.Context, files ...digest.Digest) (objects []digest.Digest) {
	for _, d := range files {
		if s.recoverFile(ctx, d) && s.Has(d) {
			objects = append(objects, d)
		}
	}
	return objects
}

// RecoverAll is Recover for all unrecorded files, and for those set aside because of their size, since the
// record may have been wrong.
func (s *Objects) RecoverAll(ctx context.Context) (objects []digest.Digest) {
	for _, f := range s.Unrecorded() {
		objects = append(objects, s.Recover(ctx, f.Digest)...)
	}
	s.mu.Lock()
	resized := slices.Clone(s.resized)
	s.mu.Unlock()
	for _, d := range resized {
		if err := s.restore(ctx, d); err != nil && !isDamage(err) && ctx.Err() == nil {
			s.o.Log.Error("file that was set aside cannot be hashed", "digest", d, "err", err)
		}
		if s.Has(d) {
			objects = append(objects, d)
		}
	}
	return objects
}

// recoverFile hashes an unrecorded file, which then is an object or set aside. It reports whether
// the file was unrecorded. If ctx ends, it stays unrecorded.
func (s *Objects) recoverFile(ctx context.Context, d digest.Digest) bool {
	f := s.withoutRecord(d)
	if f == nil {
		return false
	}
	select {
	case f.busy <- struct{}{}:
		defer func() { <-f.busy }()
	case <-ctx.Done():
		return true
	}
	s.mu.Lock()
	same := s.unrecorded[d] == f
	s.mu.Unlock()
	if !same {
		return true // hashed by another goroutine
	}
	if err := s.check(ctx, d, f.size); err != nil && !isDamage(err) && !errors.Is(err, fs.ErrNotExist) {
		if ctx.Err() == nil {
			s.o.Log.Error("file without a record cannot be hashed", "digest", d, "err", err)
		}
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unrecorded[d] == f {
		delete(s.unrecorded, d)
	}
	return true
}

// withoutRecord returns the unrecorded file with the name of an object, which Compare may not have found yet; nil if
// there is none.
func (s *Objects) withoutRecord(d digest.Digest) *unrecordedFile {
	if _, err := verify.ParseDigest(d.String()); err != nil || s.o.DB.Has(d) {
		return nil
	}
	if _, regular, err := s.o.Root.Size(Path(d)); err == nil && regular {
		s.adopt(d)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unrecorded[d]
}

// check hashes the file of an object. It records a right file, and sets a wrong one aside and
// returns its error (isDamage).
func (s *Objects) check(ctx context.Context, d digest.Digest, size int64) error {
	return s.checkAs(ctx, d, size, 0, nil)
}

// checkAs is check with flags to open the file with, and the progress of hash.
func (s *Objects) checkAs(ctx context.Context, d digest.Digest, size int64, flags int, progress func(n int64)) error {
	f, err := s.o.Root.OpenFile(Path(d), os.O_RDONLY|flags, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	err = hashAgain(ctx, f, d, size, progress)
	switch {
	case err == nil:
		return s.record(d, f, size)
	case isDamage(err):
		return errors.Join(err, s.setAsideDamaged(d, f, err))
	}
	return err
}

// record records f as the object d, unless another file has replaced it.
func (s *Objects) record(d digest.Digest, f *os.File, size int64) error {
	s.collecting.RLock()
	defer s.collecting.RUnlock()
	if !s.isObject(d, f) {
		return nil
	}
	if _, err := s.o.DB.Object(d); !errdefs.IsNotFound(err) {
		return err
	}
	return s.o.DB.Arrive(meta.Arrival{Files: []meta.File{{Digest: d, Size: size, Private: privateOf(f)}}})
}

// isObject reports whether f is the file of the object d.
func (s *Objects) isObject(d digest.Digest, f *os.File) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	current, err := s.o.Root.Lstat(Path(d))
	return err == nil && os.SameFile(open, current)
}

// isDamage reports whether an error is due to the bytes of a file.
func isDamage(err error) bool { return errdefs.IsDataLoss(err) || errors.Is(err, syscall.EIO) }

// rereadAfter is the pause before unreadable or wrong bytes are read again.
const rereadAfter = 200 * time.Millisecond

// hashAgain compares a file with its digest. If it is bad, it is read once more, bypassing the page
// cache if possible: memory, cables and busy disks fail temporarily.
func hashAgain(ctx context.Context, f io.ReaderAt, d digest.Digest, size int64, progress func(n int64)) error {
	err := hash(ctx, f, d, size, progress)
	if !isDamage(err) {
		return err
	}
	select {
	case <-time.After(rereadAfter):
	case <-ctx.Done():
		return ctx.Err()
	}
	if file, ok := f.(*os.File); ok {
		// Drops clean pages from the cache. If that fails, reading again does no harm.
		_ = unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)
	}
	return hash(ctx, f, d, size, progress)
}

// hashBuffer is the size of a read while hashing, in bytes.
const hashBuffer = 1 << 20

// hash compares a file with its digest and size. progress, if not nil, is called with the number of
// bytes read so far.
func hash(ctx context.Context, f io.ReaderAt, d digest.Digest, size int64, progress func(n int64)) error {
	h, buf := verify.NewHash(), make([]byte, hashBuffer)
	for n := int64(0); ; {
		m, err := f.ReadAt(buf, n)
		h.Write(buf[:m])
		n += int64(m)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == io.EOF || n > size:
			return verify.Compare(d, h.Digest(), size, n)
		case err != nil:
			return err
		case progress != nil:
			progress(n)
		}
	}
}

// setAsideDamaged sets the file f of an object aside, unless another file has replaced it, and removes the
// record.
func (s *Objects) setAsideDamaged(d digest.Digest, f *os.File, why error) error {
	s.collecting.Lock() // excludes publishing
	defer s.collecting.Unlock()
	if !s.isObject(d, f) {
		return nil
	}
	s.o.Log.Error("object is damaged; it is set aside", "digest", d, "path", damagedPath(d), "err", why)
	s.lost.Add(1)
	if err := s.setAside(d); err != nil {
		return err
	}
	return s.o.DB.Lose(d)
}

// setAside moves the file of an object away, so that it can no longer be read.
func (s *Objects) setAside(d digest.Digest) error {
	err := s.o.Root.Rename(Path(d), damagedPath(d))
	if err != nil {
		return fmt.Errorf("set object %s aside: %w", d, err)
	}
	if s.linked(damagedPath(d)) {
		err = s.withhold(d)
	}
	return errors.Join(err, s.o.Root.Sync(filepath.Dir(Path(d))), s.o.Root.Sync(DamagedDir))
}

// Damaged returns the files that were set aside, by digest.
func (s *Objects) Damaged() (files []meta.Sized, err error) {
	entries, err := fs.ReadDir(s.o.Root.FS(), DamagedDir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		d, err := verify.ParseDigest("sha256:" + e.Name())
		if err != nil {
			continue // not a file of the store
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		files = append(files, meta.Sized{Digest: d, Size: info.Size()})
	}
	return files, nil
}

// restore hashes a file that was set aside, and makes it an object again if it is right. If it is
// still wrong, restore returns that error (isDamage).
func (s *Objects) restore(ctx context.Context, d digest.Digest) error {
	f, err := s.o.Root.Open(damagedPath(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // replaced or collected
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	err = hash(ctx, f, d, info.Size(), nil)
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return err
	}
	err = s.publishFile(meta.File{Staged: damagedPath(d), Digest: d, Size: info.Size(), Private: privateOf(f)})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		s.o.Log.Info("file that was set aside is right and is an object again", "digest", d, "bytes", info.Size())
	}
	return err
}

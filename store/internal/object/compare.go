package object

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// directories is the number of directories of objects: one for each first byte of a digest.
const directories = 1 << 8

// restFactor is how many times as long as it works, and longestRest how long at most, Compare rests after each
// directory.
const (
	restFactor  = 9
	longestRest = time.Second
)

// topPath is the path of the parent of the directories of objects.
var topPath = filepath.Join(Dir, digest.SHA256.String())

// dirPath returns the path of the directory of the objects whose digests begin with a byte.
func dirPath(first byte) string { return filepath.Join(topPath, hex.EncodeToString([]byte{first})) }

// Found is what Compare has found.
type Found struct {
	Bad        []Bad // objects that are missing or were set aside because of their size
	Unrecorded int   // files without a record
}

// Compare compares the names and sizes of all files below objects with the records. It works a tenth of the time.
// Missing files, and those of another size, are no longer objects, and files without a record are unrecorded.
func (s *Objects) Compare(ctx context.Context) (Found, error) { return s.compare(ctx, restFactor) }

// compare is Compare with another restFactor.
func (s *Objects) compare(ctx context.Context, factor time.Duration) (found Found, err error) {
	err = s.logStrays()
	for first := range directories {
		began := time.Now()
		err = errors.Join(err, s.compareDir(byte(first), &found))
		select {
		case <-time.After(min(factor*time.Since(began), longestRest)):
		case <-ctx.Done():
			return found, ctx.Err()
		}
	}
	return found, err
}

// compareDir compares a directory with the records and settles the differences.
func (s *Objects) compareDir(first byte, found *Found) error {
	files, err := s.files(first)
	if err != nil {
		return err
	}
	diff := s.o.DB.Compare(first, files)
	for _, f := range diff.Unknown {
		if s.adopt(f.Digest) {
			found.Unrecorded++
		}
	}
	for _, d := range diff.Missing {
		lost, merr := s.missing(d)
		if err = errors.Join(err, merr); lost {
			found.Bad = append(found.Bad, Bad{Digest: d, Problem: Missing})
		}
	}
	for _, f := range diff.Resized {
		bad, rerr := s.resize(f.Digest)
		if err = errors.Join(err, rerr); bad != nil {
			found.Bad = append(found.Bad, *bad)
		}
	}
	return err
}

// files returns the files in a directory that have the name of an object. It logs others.
func (s *Objects) files(first byte) (found []meta.Sized, err error) {
	dir := dirPath(first)
	f, err := s.o.Root.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		path := filepath.Join(dir, name)
		d, err := verify.ParseDigest("sha256:" + name)
		object, size := err == nil && Path(d) == path, int64(0)
		if object {
			if size, object, err = s.o.Root.Size(path); errors.Is(err, fs.ErrNotExist) {
				continue // removed meanwhile
			} else if err != nil {
				return nil, err
			}
		}
		if object {
			found = append(found, meta.Sized{Digest: d, Size: size})
		} else {
			s.logUnexpected(path)
		}
	}
	return found, nil
}

// logStrays logs files where only directories of objects are expected.
func (s *Objects) logStrays() error {
	top, err := fs.ReadDir(s.o.Root.FS(), Dir)
	if err != nil {
		return err
	}
	for _, e := range top {
		if e.Name() != digest.SHA256.String() || !e.IsDir() {
			s.logUnexpected(filepath.Join(Dir, e.Name()))
		}
	}
	dirs, err := fs.ReadDir(s.o.Root.FS(), topPath)
	for _, e := range dirs {
		name := filepath.Join(topPath, e.Name())
		if p, err := hex.DecodeString(e.Name()); err != nil || len(p) != 1 || dirPath(p[0]) != name || !e.IsDir() {
			s.logUnexpected(name)
		}
	}
	return err
}

// logUnexpected logs a file or directory that is not of the store.
func (s *Objects) logUnexpected(name string) {
	s.o.Log.Warn("unexpected file below objects; left alone", "path", name)
}

// adopt lists the file of an object as unrecorded if it has no record, and reports whether it was not.
func (s *Objects) adopt(d digest.Digest) bool {
	s.mu.Lock()
	_, listed := s.unrecorded[d]
	s.mu.Unlock()
	if listed {
		return false
	}
	s.collecting.Lock() // while a file is published, it has no record
	defer s.collecting.Unlock()
	size, regular, err := s.o.Root.Size(Path(d))
	if err != nil || !regular {
		return false // removed
	}
	if _, err := s.o.DB.Object(d); !errdefs.IsNotFound(err) {
		return false
	}
	s.unrecord(meta.Sized{Digest: d, Size: size})
	return true
}

// resize sets an object aside whose file has another size than recorded; nil if it has not.
func (s *Objects) resize(d digest.Digest) (*Bad, error) {
	s.collecting.Lock() // excludes publishing
	defer s.collecting.Unlock()
	rec, err := s.o.DB.Object(d)
	if err != nil {
		return nil, nil // collected
	}
	size, _, err := s.o.Root.Size(Path(d))
	if errors.Is(err, fs.ErrNotExist) || err == nil && size == rec.Size {
		return nil, nil // whoever uses it finds that it is missing
	} else if err != nil {
		return nil, err
	}
	s.o.Log.Error("object has another size than recorded; it is set aside", "digest", d, "bytes", size, "path", damagedPath(d))
	s.lost.Add(1)
	s.mu.Lock()
	s.resized = append(s.resized, d)
	s.mu.Unlock()
	if err := errors.Join(s.setAside(d), s.o.DB.Lose(d)); err != nil {
		return nil, err
	}
	return &Bad{Digest: d, Size: rec.Size, Problem: fmt.Sprintf("%d bytes instead of %d", size, rec.Size)}, nil
}

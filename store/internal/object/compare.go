package object

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
)

const (
	// settleTime is how long a directory must not have changed before its state is recorded: a change that follows
	// within the granularity of the times of the file system, at most 2 seconds, would not change the state.
	settleTime = 3 * time.Second

	// sizesAtOpen is the number of files in changed directories whose sizes Open compares. A file whose size has changed
	// since it became an object is due to damage; names differ after each crash.
	sizesAtOpen = 50_000

	// recordedAtOnce is the number of directories whose states are recorded in one transaction.
	recordedAtOnce = 16

	// restFactor is how many times as long as it works, and longestRest how long at most, Compare rests after each
	// directory.
	restFactor  = 9
	longestRest = time.Second
)

// adopt makes the records agree with the files below objects: files without a record are listed as unrecorded, records
// of missing files are removed, and files of another size are set aside. Directories that have not changed since
// Compare are not read, and after sizesAtOpen files only names are compared.
func (s *Objects) adopt() (err error) {
	if s.compared, err = s.o.DB.Compared(); err != nil {
		return err
	}
	if err := s.logStrays(); err != nil {
		return err
	}
	diff, err := s.changes()
	if err != nil {
		return err
	}
	lost := diff.Missing
	for _, d := range lost {
		s.logMissing(d)
	}
	for _, f := range diff.Resized {
		f := f.Sized()
		if err := s.setResizedAside(f); err != nil {
			return err
		}
		lost = append(lost, f.Digest)
	}
	if err := errors.Join(s.withhold(lost...), s.o.DB.Lose(lost...)); err != nil {
		return err
	}
	aside, err := s.Damaged()
	if err != nil {
		return err
	}
	for _, f := range aside { // replaced just before the process ended
		if s.Has(f.Digest) {
			s.removeReplaced(f.Digest)
		}
	}
	for _, f := range diff.Unknown {
		s.unrecord(f.Sized())
	}
	for _, f := range diff.Unknown {
		if f.Size <= smallFile {
			s.recoverFile(s.ctx, f.Sized().Digest)
		}
	}
	if n := len(s.unrecorded); n > 0 {
		s.o.Log.Warn("files without a record must be hashed before they are objects", "files", n)
	}
	return nil
}

// changes compares the directories that have changed with the records.
func (s *Objects) changes() (all meta.Difference, err error) {
	var mu sync.Mutex // guards all and left
	left := sizesAtOpen
	look := func(l *lister, first byte) error {
		changed, err := s.changed(first)
		if !changed || err != nil {
			return err
		}
		mu.Lock()
		sizes := left > 0
		mu.Unlock()
		diff, err := l.differences(first, sizes)
		mu.Lock()
		defer mu.Unlock()
		left -= len(l.found)
		all.Unknown = append(all.Unknown, diff.Unknown...)
		all.Resized = append(all.Resized, diff.Resized...)
		all.Missing = append(all.Missing, diff.Missing...)
		return err
	}
	var work errgroup.Group
	parallel := runtime.GOMAXPROCS(0)
	for i := range parallel {
		work.Go(func() (err error) {
			l := s.newLister()
			for first := i; first < directories && err == nil; first += parallel {
				err = look(l, byte(first))
			}
			return err
		})
	}
	return all, work.Wait()
}

// changed reports whether a directory may have changed since it was compared.
func (s *Objects) changed(first byte) (bool, error) {
	now, err := s.state(first)
	was, ok := s.compared[dirName(first)]
	return !ok || was != now, err
}

// Found is what Compare has found.
type Found struct {
	Bad        []Bad // objects that are missing or were set aside because of their size
	Unrecorded int   // files without a record
	Changing   int   // directories that could not be recorded, because they have just changed
}

// Compare compares the files of all directories with the records, or of those that have changed since it last did:
// names and sizes. It works a tenth of the time. It records directories in which nothing differs, so that Open need
// not read them while they do not change. Only one call may run.
func (s *Objects) Compare(ctx context.Context, all bool) (found Found, err error) {
	if s.compared, err = s.o.DB.Compared(); err != nil { // some were removed with records
		return found, err
	}
	same, l := map[string]meta.DirState{}, s.newLister()
	l.strays = true
	differ := s.unrecordedDirs()
	for first := range directories {
		began := time.Now()
		l.found = l.found[:0]
		changed, cerr := s.changed(byte(first))
		changed = changed && !differ[dirName(byte(first))] // compared again when its files have been hashed
		if cerr == nil && (changed || all) {
			cerr = l.compareDir(byte(first), &found, same)
		}
		err = errors.Join(err, cerr)
		if len(same) == recordedAtOnce || first == directories-1 {
			err = errors.Join(err, s.recordCompared(same))
			clear(same)
		}
		if len(l.found) > 0 {
			rest(ctx, min(restFactor*time.Since(began), longestRest))
		}
		if ctx.Err() != nil {
			return found, ctx.Err()
		}
	}
	return found, err
}

// unrecordedDirs returns the names of the directories that have files without a record.
func (s *Objects) unrecordedDirs() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	dirs := map[string]bool{}
	for d := range s.unrecorded {
		dirs[d.Encoded()[:2]] = true
	}
	return dirs
}

// rest waits for d or the end of ctx.
func rest(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// compareDir compares a directory with the records and settles the differences. If there are none, it adds the state
// of the directory to same.
func (s *lister) compareDir(first byte, found *Found, same map[string]meta.DirState) error {
	before, err := s.state(first)
	if err != nil {
		return err
	}
	diff, err := s.differences(first, true)
	if err != nil {
		return err
	}
	if _, ok := s.compared[dirName(first)]; ok && !diff.Empty() {
		if err := s.o.DB.ForgetCompared(dirName(first)); err != nil {
			return err
		}
	}
	for _, f := range diff.Unknown {
		if s.adoptUnknown(f.Sized()) {
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
		bad, rerr := s.resize(f.Sized())
		if err = errors.Join(err, rerr); bad != nil {
			found.Bad = append(found.Bad, *bad)
		}
	}
	switch {
	case err != nil || !diff.Empty() || before == (meta.DirState{}):
	case s.settled(before):
		same[dirName(first)] = before
	default:
		found.Changing++
	}
	return err
}

// settled reports whether each later change of a directory changes its state.
func (s *Objects) settled(d meta.DirState) bool {
	return time.Since(time.Unix(0, max(d.Modified, d.Changed))) >= s.settleTime
}

// recordCompared records the states of directories in which nothing differs, unless they have changed since.
func (s *Objects) recordCompared(same map[string]meta.DirState) error {
	s.collecting.RLock() // no record is removed meanwhile, and each removed one has lost its file or is unrecorded
	defer s.collecting.RUnlock()
	for name := range s.unrecordedDirs() {
		delete(same, name)
	}
	for first := range directories {
		name := dirName(byte(first))
		was, ok := same[name]
		if !ok {
			continue
		}
		if now, err := s.state(byte(first)); err != nil || now != was || s.compared[name] == was {
			delete(same, name)
		}
	}
	if len(same) == 0 {
		return nil
	}
	return s.o.DB.PutCompared(same)
}

// adoptUnknown lists a file without a record as unrecorded, and reports whether it was not.
func (s *Objects) adoptUnknown(f meta.Sized) bool {
	s.mu.Lock()
	_, listed := s.unrecorded[f.Digest]
	s.mu.Unlock()
	if listed {
		return false
	}
	s.collecting.Lock() // while a file is published, it has no record
	defer s.collecting.Unlock()
	size, regular, err := s.o.Root.Size(Path(f.Digest))
	if err != nil || !regular {
		return false // removed
	}
	if _, err := s.o.DB.Object(f.Digest); !errdefs.IsNotFound(err) {
		return false
	}
	s.o.Log.Warn("file without a record must be hashed before it is an object", "digest", f.Digest)
	s.unrecord(meta.Sized{Digest: f.Digest, Size: size})
	return true
}

// resize sets an object aside whose file has another size than recorded; nil if it has not.
func (s *Objects) resize(f meta.Sized) (*Bad, error) {
	s.collecting.Lock() // excludes publishing
	defer s.collecting.Unlock()
	rec, err := s.o.DB.Object(f.Digest)
	if err != nil {
		return nil, nil // collected
	}
	size, _, err := s.o.Root.Size(Path(f.Digest))
	if errors.Is(err, fs.ErrNotExist) || err == nil && size == rec.Size {
		return nil, nil // Compare finds a missing file when the directory has changed
	} else if err != nil {
		return nil, err
	}
	s.lost.Add(1)
	if err := errors.Join(s.setResizedAside(meta.Sized{Digest: f.Digest, Size: size}), s.o.DB.Lose(f.Digest)); err != nil {
		return nil, err
	}
	return &Bad{Digest: f.Digest, Size: rec.Size, Problem: fmt.Sprintf("%d bytes instead of %d", size, rec.Size)}, nil
}

// setResizedAside sets a file aside that has another size than recorded.
func (s *Objects) setResizedAside(f meta.Sized) error {
	s.o.Log.Error("object has another size than recorded; it is set aside", "digest", f.Digest, "bytes", f.Size, "path", damagedPath(f.Digest))
	s.mu.Lock()
	s.resized = append(s.resized, f.Digest)
	s.mu.Unlock()
	return s.setAside(f.Digest)
}

func (s *Objects) logMissing(d digest.Digest) {
	s.o.Log.Error("file of a recorded object is missing", "digest", d)
}

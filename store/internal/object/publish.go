package object

import (
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
)

// A publication is a call of Publish.
type publication struct {
	meta.Arrival
	err  error
	next chan bool // receives true when this call publishes next, false when it was published by another
}

// Publish renames files, syncs the directories and records the objects, in this order: a crash
// leaves files without a record, which are hashed, or nothing. The staged file of an object that
// exists stays where it is.
//
// Syncing many files takes as long as syncing one. Calls that arrive while another publishes wait
// together, and the first of them publishes for all.
func (s *Objects) Publish(a meta.Arrival) error {
	p := &publication{Arrival: a, next: make(chan bool, 1)}
	s.mu.Lock()
	s.waiting = append(s.waiting, p)
	mine := !s.publishing
	s.publishing = true
	s.mu.Unlock()
	if !mine && !<-p.next {
		return p.err
	}
	s.mu.Lock()
	all := s.waiting
	s.waiting = nil
	s.mu.Unlock()
	s.publish(all)
	s.mu.Lock()
	if s.publishing = len(s.waiting) > 0; s.publishing {
		s.waiting[0].next <- true
	}
	s.mu.Unlock()
	for _, other := range all {
		other.next <- false // buffered, including p's own
	}
	return p.err
}

func (s *Objects) publishFile(f meta.File) error {
	return s.Publish(meta.Arrival{Files: []meta.File{f}})
}

// publish executes publications. Unless the disk fails, a failed one does not affect the others.
// What it renamed is below objects without a record, as after a crash.
func (s *Objects) publish(all []*publication) {
	s.collecting.RLock()
	defer s.collecting.RUnlock()
	dirs, done := map[string]bool{}, map[digest.Digest]bool{}
	defer func() {
		for _, p := range all {
			for _, f := range p.Files {
				if p.err != nil && done[f.Digest] && !s.Has(f.Digest) {
					s.unrecord(meta.Sized{Digest: f.Digest, Size: f.Size})
				}
			}
		}
	}()
	for _, p := range all {
		p.err = s.rename(p.Files, dirs, done)
	}
	err := s.syncDirs(dirs)
	var renamed []*publication
	var arrivals []meta.Arrival
	for _, p := range all {
		if p.err = errors.Join(p.err, err); p.err == nil {
			renamed, arrivals = append(renamed, p), append(arrivals, p.Arrival)
		}
	}
	if len(renamed) == 0 {
		return
	}
	err = s.o.DB.Arrive(arrivals...)
	for _, p := range renamed {
		if p.err = err; err != nil && len(renamed) > 1 {
			p.err = s.o.DB.Arrive(p.Arrival)
		}
		if p.err == nil {
			for _, f := range p.Files {
				s.removeReplaced(f.Digest)
			}
		}
	}
}

// rename makes files objects without a record, and adds their directories to dirs. done are the files
// that this and earlier publications of the same call have renamed: two fetches can have the same
// staged file.
func (s *Objects) rename(files []meta.File, dirs map[string]bool, done map[digest.Digest]bool) error {
	for _, f := range files {
		s.Protect(f.Digest)
		if done[f.Digest] || s.Has(f.Digest) { // already published; its record has the sources
			continue
		}
		to := Path(f.Digest)
		if dir := filepath.Dir(to); !dirs[dir] {
			if err := s.o.Root.MkdirAll(dir, 0o700); err != nil {
				return err
			}
			dirs[dir] = true
		}
		if err := s.markPrivate(f.Staged, f.Private); err != nil {
			return err
		}
		if err := s.o.Root.Rename(f.Staged, to); err != nil {
			return err
		}
		done[f.Digest] = true
	}
	return nil
}

// syncDirs syncs directories of objects and their parent.
func (s *Objects) syncDirs(dirs map[string]bool) error {
	var g errgroup.Group // concurrent syncs share the work of the disk
	for dir := range dirs {
		g.Go(func() error { return s.o.Root.Sync(dir) })
	}
	if len(dirs) > 0 {
		g.Go(func() error { return s.o.Root.Sync(topPath) })
	}
	return g.Wait()
}

// removeReplaced removes the unrecorded and damaged files that an object has replaced.
func (s *Objects) removeReplaced(d digest.Digest) {
	s.mu.Lock()
	delete(s.unrecorded, d)
	s.mu.Unlock()
	// A remaining file costs only space.
	if err := s.o.Root.Remove(damagedPath(d)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.o.Log.Warn("damaged file stays", "path", damagedPath(d), "err", err)
	}
}

package object

import (
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
)

// A File is finished, fsynced and verified, and becomes an object.
type File struct {
	From   string // path below the root
	Digest digest.Digest
	Size   int64

	// Private are the names of the sources that may have it; none: anybody may.
	Private []string

	// Chunks are those it was made of and verified by, if it was.
	Chunks []filetable.Chunk
}

// A publication is a call of Publish.
type publication struct {
	files []File
	found meta.Arrival
	err   error
	next  chan bool // gets true when it is its turn to publish, false when it was published
}

// Publish renames files to their places, makes the directories durable and records the
// objects, all in this order: a crash leaves a file that has to be hashed again, or nothing. found is
// recorded with them.
//
// The disk takes as long for many as for one. So who comes while others are published waits, together with
// all who come meanwhile, and the first of them publishes for all.
func (s *Objects) Publish(files []File, found meta.Arrival) error {
	p := &publication{files: files, found: found, next: make(chan bool, 1)}
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
		other.next <- false // there is room for it, also in p's
	}
	return p.err
}

// publish does the work of publications. One that fails leaves the others alone, unless the disk fails.
func (s *Objects) publish(all []*publication) {
	s.collecting.RLock()
	defer s.collecting.RUnlock()
	dirs := map[string]bool{}
	for _, p := range all {
		p.err = s.place(p, dirs)
	}
	err := s.syncDirs(dirs)
	var placed []*publication
	var found []meta.Arrival
	for _, p := range all {
		if p.err = errors.Join(p.err, err); p.err == nil {
			placed, found = append(placed, p), append(found, p.found)
		}
	}
	if len(placed) == 0 {
		return
	}
	err = s.o.DB.Arrive(found...)
	for _, p := range placed {
		if p.err = err; err != nil && len(placed) > 1 {
			p.err = s.o.DB.Arrive(p.found)
		}
		if p.err == nil {
			s.believe(p.files)
		}
	}
}

// place renames the files of a publication, and says in which directories.
func (s *Objects) place(p *publication, dirs map[string]bool) error {
	p.found.Chunks = map[digest.Digest][]filetable.Chunk{}
	p.found.Private = map[digest.Digest][]string{}
	for _, f := range p.files {
		s.Keep(f.Digest)
		p.found.Objects = append(p.found.Objects, meta.Sized{Digest: f.Digest, Size: f.Size})
		p.found.Private[f.Digest] = f.Private
		if s.Has(f.Digest) { // somebody was faster; who may have it is recorded with his
			continue
		}
		to := Path(f.Digest)
		if dir := filepath.Dir(to); !dirs[dir] {
			if err := s.o.Root.MkdirAll(dir, 0o700); err != nil {
				return err
			}
			dirs[dir] = true
		}
		if err := s.markPrivate(f.From, f.Private); err != nil {
			return err
		}
		if err := s.o.Root.Rename(f.From, to); err != nil {
			return err
		}
		p.found.Chunks[f.Digest] = f.Chunks
	}
	return nil
}

// syncDirs makes directories of objects durable, and the directory of them all.
func (s *Objects) syncDirs(dirs map[string]bool) error {
	var g errgroup.Group // the disk does at once what it is asked for together
	for dir := range dirs {
		g.Go(func() error { return s.syncDir(dir) })
	}
	if len(dirs) > 0 {
		g.Go(func() error { return s.syncDir(filepath.Join(Dir, digest.SHA256.String())) })
	}
	return g.Wait()
}

// believe ends the doubts about files that were replaced by verified ones.
func (s *Objects) believe(files []File) {
	for _, f := range files {
		s.mu.Lock()
		delete(s.doubted, f.Digest)
		s.mu.Unlock()
		// Nothing is lost with it, and without it only space.
		if err := s.o.Root.Remove(damagedPath(f.Digest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.o.Log.Warn("damaged file stays", "path", damagedPath(f.Digest), "err", err)
		}
	}
}

func (s *Objects) syncDir(name string) error {
	f, err := s.o.Root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

package store

import (
	"fmt"

	"github.com/ballast-dev/ballast/store/internal/chunkfile"
	"github.com/ballast-dev/ballast/store/internal/hydrate"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// LazySize returns the size in bytes of a file that can be read, complete or not. It returns
// errdefs.ErrNotFound for one that can not.
func (s *Store) LazySize(d digest.Digest) (int64, error) {
	if x := s.exposure(d); x != nil {
		return x.size, nil
	}
	return s.objects.Size(d)
}

// LazyFile returns the size in bytes of a file that can be read, complete or not, and its identity,
// which follows from d and the way in which the file is brought: a table can lie about the digest of a
// file, and be gone before that is found out. What is read of one identity is never another's. A file
// keeps its identity when it becomes complete, if it was the right one. It returns errdefs.ErrNotFound
// for a file that can not be read.
func (s *Store) LazyFile(d digest.Digest) (size int64, identity digest.Digest, err error) {
	if x := s.exposure(d); x != nil {
		if x.file == nil {
			return x.size, d, nil
		}
		return x.size, identityOf(d, x.file.Layout), nil
	}
	if size, err = s.LazySize(d); err != nil {
		return 0, "", err
	}
	identity, err = s.db.Identity(d)
	if errdefs.IsNotFound(err) {
		return size, d, nil
	}
	return size, identity, err
}

// identityOf returns the identity of a file that is brought in a way. Of one that can be read only as
// a whole nothing else is ever seen.
func identityOf(d digest.Digest, l *chunkfile.Layout) digest.Digest {
	if l == nil {
		return d
	}
	return digest.FromString(d.String() + " " + l.ID.String())
}

// arrived says that a file is an object. If readers see it by chunks that did not make the object, it
// is found out first whether they are the same bytes.
func (s *Store) arrived(p hydrate.Publication) {
	x := s.exposure(p.Digest)
	if x == nil || x.file == nil || p.Layout != nil && p.Layout.ID == x.file.Layout.ID {
		s.completed(p.Digest)
		return
	}
	s.spawn(func() {
		if err := s.vouch(x.file); err != nil {
			s.log.Warn("a file was read in chunks that are not those of its content; who has it open must open it anew", "digest", p.Digest, "err", err)
		}
		s.completed(p.Digest)
	})
}

// vouch compares the chunks of a file that is read early with its object, and keeps its identity if they
// are the same.
func (s *Store) vouch(file *chunkfile.File) error {
	if file.Layout.Unverified {
		return fmt.Errorf("they were not verified: %w", errdefs.ErrDataLoss)
	}
	f, err := s.OpenObject(file.Digest)
	if err != nil {
		return err
	}
	defer f.Close()
	var buf []byte
	for _, c := range file.Layout.Chunks {
		if int64(cap(buf)) < c.Size {
			buf = make([]byte, c.Size)
		}
		if c.Digest != "" && !readChunk(f, c.Offset, c, buf[:c.Size]) {
			return fmt.Errorf("chunk at %d: %w", c.Offset, errdefs.ErrDataLoss)
		}
	}
	return s.db.PutIdentities(map[digest.Digest]digest.Digest{file.Digest: identityOf(file.Digest, file.Layout)})
}

// spawn runs f until the end of the store, unless that has come.
func (s *Store) spawn(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.work.Go(f)
	}
}

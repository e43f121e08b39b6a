package store

import (
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// LazySize returns the size in bytes of a file that can be read, complete or not. It returns
// errdefs.ErrNotFound for one that can not.
func (s *Store) LazySize(d digest.Digest) (int64, error) {
	if l := s.lazyFile(d); l != nil {
		return l.size, nil
	}
	return s.objects.Size(d)
}

// LazyFile returns the size in bytes of a file that can be read, complete or not, and its identity,
// which follows from d and the way in which the file is brought: a table can lie about the digest of a
// file, and be gone before that is found out. What is read of one identity is never another's. A file
// keeps its identity when it becomes complete, if it was the right one. It returns errdefs.ErrNotFound
// for a file that can not be read.
func (s *Store) LazyFile(d digest.Digest) (size int64, identity digest.Digest, err error) {
	if l := s.lazyFile(d); l != nil {
		return l.size, identityOf(d, l.how), nil
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
func identityOf(d digest.Digest, how *chunked) digest.Digest {
	if how == nil {
		return d
	}
	return digest.FromString(d.String() + " " + how.recipe.String())
}

// arrived says that a file is an object. If readers see it by chunks that did not make the object, it
// is found out first whether they are the same bytes.
func (s *Store) arrived(p publication) {
	l := s.lazyFile(p.d)
	if l == nil || l.how == nil || p.how != nil && p.how.recipe == l.how.recipe {
		s.completed(p.d)
		return
	}
	s.spawn(func() {
		if err := s.vouch(l); err != nil {
			s.log.Warn("a file was read in chunks that are not those of its content; who has it open must open it anew", "digest", p.d, "err", err)
		}
		s.completed(p.d)
	})
}

// vouch compares the chunks of a lazy file with its object, and keeps its identity if they are the
// same.
func (s *Store) vouch(l *lazyFile) error {
	f, err := s.OpenObject(l.name)
	if err != nil {
		return err
	}
	defer f.Close()
	buf, err := s.idleBuffers.take(s.ctx)
	if err != nil {
		return err
	}
	defer s.idleBuffers.give(buf)
	for _, c := range l.how.chunks {
		if c.Digest != "" && !readChunk(f, c.Offset, c, buf[:c.Size]) {
			return fmt.Errorf("chunk at %d: %w", c.Offset, errdefs.ErrDataLoss)
		}
	}
	return s.db.PutIdentities(map[digest.Digest]digest.Digest{l.name: identityOf(l.name, l.how)})
}

package store

import (
	"context"
	"time"

	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Ref is a reference that keeps the objects of a table.
type Ref = meta.Ref

// AddRef makes a reference to a table; a name that exists is replaced, keeping its age and, if
// it is of the same table, its sources. A zero expires means never.
//
// If the table is not known, because the database was lost, it is read from its object. If there is
// none, the reference is made all the same and AddRef returns errdefs.ErrNotFound: nothing is collected
// until somebody puts the table, or removes the reference.
func (s *Store) AddRef(ctx context.Context, name string, table digest.Digest, expires time.Time) error {
	needs, err := s.db.AddRef(name, table, expires)
	if errdefs.IsNotFound(err) {
		needs, err = s.recoverTable(table)
	}
	if err != nil {
		return err
	}
	s.objects.HandOver(needs...)
	return nil
}

// maxSources is how many sources are remembered for a reference.
const maxSources = 16

// SetRefSources remembers what the table of a reference is got from, for when the rest of the
// model has to be fetched later. It returns errdefs.ErrNotFound if there is no such reference.
func (s *Store) SetRefSources(ctx context.Context, name string, sources []string) error {
	return s.db.SetRefSources(name, sources[:min(len(sources), maxSources)])
}

// RemoveRef removes references, all or none; one that does not exist is no error.
func (s *Store) RemoveRef(ctx context.Context, names ...string) error {
	if err := s.db.DropRefs(names...); err != nil {
		return err
	}
	s.mu.Lock()
	for _, name := range names {
		delete(s.presented, name)
	}
	s.mu.Unlock()
	s.withdraw()
	return nil
}

// Refs returns all references whose name starts with prefix, sorted.
func (s *Store) Refs(ctx context.Context, prefix string) ([]Ref, error) {
	return s.db.Refs(prefix), nil
}

// RefsOf returns the references to a table, oldest first.
func (s *Store) RefsOf(ctx context.Context, table digest.Digest) ([]Ref, error) {
	return s.db.RefsOf(table), nil
}

// Ref returns one reference, or errdefs.ErrNotFound.
func (s *Store) Ref(ctx context.Context, name string) (Ref, error) { return s.db.Ref(name) }

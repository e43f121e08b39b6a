package store

import (
	"time"

	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Ref is a reference that keeps the objects of a table.
type Ref = meta.Ref

// AddRef adds a reference to a table. An existing reference with the name is replaced, but keeps
// its creation time and, if it is to the same table and no names of sources are given, its sources. A zero
// expires means never.
//
// If the table is unknown, because the database was lost, it is read from its object. If that is
// missing, AddRef adds the reference and returns errdefs.ErrNotFound: garbage collection stops
// until the table is stored again or the reference is removed.
//
// The view of a reference that is new, or was to another table, is empty if sources are given. Without them, the
// reference may be one that was lost, whose view stays.
func (s *Store) AddRef(name string, table digest.Digest, expires time.Time, sources ...string) error {
	old, err := s.db.Ref(name)
	if err == nil && old.Table != table {
		defer s.exposed.Withdraw(old.Table)
	}
	if old.Table != table && len(sources) > 0 {
		if err := s.objects.RemoveViews(name); err != nil {
			return err
		}
	}
	needs, err := s.db.AddRef(name, table, expires, sources...)
	if errdefs.IsNotFound(err) {
		needs, err = s.recoverTable(table)
	}
	if err != nil {
		return err
	}
	s.objects.Unprotect(needs...)
	return nil
}

// RemoveRef removes references, all or none, with their views. Names without a reference are ignored.
func (s *Store) RemoveRef(names ...string) error {
	var tables []digest.Digest
	for _, name := range names {
		if r, err := s.db.Ref(name); err == nil {
			tables = append(tables, r.Table)
		}
	}
	if len(tables) == 0 {
		return nil
	}
	if err := s.db.DropRefs(names...); err != nil {
		return err
	}
	s.exposed.Forget(names...)
	s.exposed.Withdraw(tables...)
	return s.objects.RemoveViews(names...)
}

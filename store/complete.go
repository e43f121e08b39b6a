package store

import (
	"slices"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/hydrate"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// HeadersVerified reports whether the headers of the uncompressed tars of a table (filetable.Blob.Index), and those in
// its files with parts and a digest, are known to be right: true without such tars and files, false until all of them
// have been here. It returns errdefs.ErrInvalidArgument if they are wrong.
func (s *Store) HeadersVerified(table digest.Digest) (bool, error) {
	t, err := s.Table(table)
	if err != nil {
		return false, err
	}
	return hydrate.Headers(s.db, t)
}

// completeTable records the objects of a table whose files are all known.
func (s *Store) completeTable(d digest.Digest, t *filetable.Table) error {
	rec, err := s.resolveRecord(d, t)
	if err != nil {
		return err
	}
	held, err := s.db.CompleteTable(d, rec)
	if err != nil {
		return err
	}
	if held {
		s.objects.Unprotect(rec.Objects...)
	} else {
		s.objects.Protect(rec.Objects...)
	}
	return nil
}

// resolveRecord lists the objects that a table needs. With errdefs.ErrUnavailable, if some are
// unknown, it lists the known ones.
func (s *Store) resolveRecord(d digest.Digest, t *filetable.Table) (meta.Table, error) {
	rec := meta.Table{Objects: []digest.Digest{d}}
	files, err := hydrate.Resolve(s.db, t)
	if err != nil && !errdefs.IsUnavailable(err) {
		return rec, err
	}
	rec.Partly = err != nil
	for _, f := range files {
		if f.Type == filetable.TypeReg {
			rec.Logical += f.Size
			if f.Digest != "" {
				rec.Objects = append(rec.Objects, f.Digest)
			}
		}
	}
	slices.Sort(rec.Objects)
	rec.Objects = slices.Compact(rec.Objects)
	return rec, err
}

package object

import (
	"context"
	"errors"
	"io/fs"

	"github.com/opencontainers/go-digest"
)

// Bad is a damaged or missing object.
type Bad struct {
	Digest  digest.Digest   `json:"digest"`
	Size    int64           `json:"size"` // as recorded, in bytes; 0 if missing
	Problem string          `json:"problem"`
	Tables  []digest.Digest `json:"tables,omitempty"` // tables that need it, if it is missing
}

// Check reads the objects of a table, or all objects if table is empty, and compares digests.
// Damaged files are set aside and are no longer objects; files that were set aside but are right
// now become objects again. progress, if not nil, is called with bytes after each object.
func (s *Objects) Check(ctx context.Context, table digest.Digest, progress func(done, total int64)) ([]Bad, error) {
	bad, err := s.recheck(ctx, table)
	if err != nil {
		return nil, err
	}
	objects, err := s.o.DB.Objects(table)
	if err != nil {
		return nil, err
	}
	var done, total int64
	for _, o := range objects {
		total += o.Size
	}
	for _, o := range objects {
		err := s.check(ctx, o.Digest, o.Size)
		switch {
		case isDamage(err):
			bad = append(bad, Bad{Digest: o.Digest, Size: o.Size, Problem: err.Error()})
		case errors.Is(err, fs.ErrNotExist):
			err = s.missing(o.Digest)
		}
		if err != nil && !isDamage(err) {
			return bad, err
		}
		if done += o.Size; progress != nil {
			progress(done, total)
		}
	}
	return bad, nil
}

// recheck hashes the files without a record, and those set aside, that a table needs, or all if
// table is empty. It returns those set aside that are still wrong.
func (s *Objects) recheck(ctx context.Context, table digest.Digest) (bad []Bad, err error) {
	var only map[digest.Digest]bool
	if table != "" {
		t, err := s.o.DB.Table(table)
		if err != nil {
			return nil, err
		}
		only = map[digest.Digest]bool{}
		for _, d := range t.Objects {
			only[d] = true
		}
	}
	for _, f := range s.Unrecorded() {
		if table == "" || only[f.Digest] {
			s.recoverFile(ctx, f.Digest)
		}
	}
	aside, err := s.Damaged()
	if err != nil {
		return nil, err
	}
	for _, f := range aside {
		if table != "" && !only[f.Digest] {
			continue
		}
		switch err := s.restore(ctx, f.Digest); {
		case isDamage(err) && s.Has(f.Digest): // replaced just before a crash
			if err := s.o.Root.Remove(damagedPath(f.Digest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return bad, err
			}
		case isDamage(err):
			bad = append(bad, Bad{Digest: f.Digest, Size: f.Size, Problem: err.Error()})
		case err != nil:
			return bad, err
		}
	}
	return bad, ctx.Err()
}

// missing removes the record of an object whose file is missing.
func (s *Objects) missing(d digest.Digest) error {
	s.collecting.Lock() // excludes publishing
	defer s.collecting.Unlock()
	if _, err := s.o.Root.Lstat(Path(d)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := s.o.DB.Object(d); err != nil {
		return nil // already collected
	}
	s.o.Log.Error("file of a recorded object is missing", "digest", d)
	return errors.Join(s.withhold(d), s.o.DB.Lose(d))
}

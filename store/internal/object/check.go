package object

import (
	"context"
	"errors"
	"io/fs"

	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// Missing is the problem of a missing object.
const Missing = "missing"

// Bad is a damaged or missing object.
type Bad struct {
	Digest  digest.Digest
	Size    int64 // as recorded, in bytes; 0 if missing
	Problem string
	Tables  []digest.Digest // tables that need it, if it is missing
}

// Check reads the objects of a table, or all files below objects if table is empty, and compares digests.
// Damaged files are set aside and are no longer objects; files that were set aside but are right
// now become objects again. progress, if not nil, is called with bytes after each object.
func (s *Objects) Check(ctx context.Context, table digest.Digest, progress func(done, total int64)) ([]Bad, error) {
	var found Found
	if table == "" { // files without a record are found; those of another size are set aside, where recheck finds them
		var err error
		if found, err = s.compare(ctx, 0); err != nil {
			return nil, err
		}
	}
	bad, err := s.recheck(ctx, table)
	if err != nil {
		return nil, err
	}
	for _, b := range found.Bad {
		if b.Problem == Missing {
			bad = append(bad, b)
		}
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
		b, err := s.checkOne(ctx, o, 0, nil)
		if err != nil {
			return bad, err
		}
		if b != nil {
			bad = append(bad, *b)
		}
		if done += o.Size; progress != nil {
			progress(done, total)
		}
	}
	return bad, nil
}

// CheckOne is Check for one object, which is read from the disk, without the page cache if the file system can. pace
// is called with the bytes read so far. It returns nil for an object that is right, or collected.
func (s *Objects) CheckOne(ctx context.Context, o meta.Sized, pace func(n int64)) (*Bad, error) {
	bad, err := s.checkOne(ctx, o, unix.O_DIRECT, pace)
	if err != nil && ctx.Err() == nil { // without the page cache, a bad sector has the error of its device; with it, EIO
		bad, err = s.checkOne(ctx, o, 0, pace)
	}
	return bad, err
}

// checkOne is CheckOne with flags to open the file with.
func (s *Objects) checkOne(ctx context.Context, o meta.Sized, flags int, pace func(n int64)) (*Bad, error) {
	err := s.checkAs(ctx, o.Digest, o.Size, flags, pace)
	switch {
	case isDamage(err):
		return &Bad{Digest: o.Digest, Size: o.Size, Problem: err.Error()}, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	lost, err := s.missing(o.Digest)
	if !lost || err != nil {
		return nil, err
	}
	return &Bad{Digest: o.Digest, Problem: Missing}, nil
}

// Lost returns the number of objects that were found damaged or missing since Open.
func (s *Objects) Lost() int64 { return s.lost.Load() }

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

// missing removes the record of an object whose file is missing, and reports whether there was one.
func (s *Objects) missing(d digest.Digest) (lost bool, err error) {
	s.collecting.Lock() // excludes publishing
	defer s.collecting.Unlock()
	if _, err := s.o.Root.Lstat(Path(d)); !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if _, err := s.o.DB.Object(d); err != nil {
		return false, nil // already collected
	}
	s.o.Log.Error("file of a recorded object is missing", "digest", d)
	s.lost.Add(1)
	return true, errors.Join(s.withhold(d), s.o.DB.Lose(d))
}

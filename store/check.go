package store

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"slices"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"
)

// ProblemMissing is the problem of an object that is needed and not there.
const ProblemMissing = "missing"

// CheckResult is the state of one object that is not well.
type CheckResult struct {
	Digest  digest.Digest   `json:"digest"`
	Size    int64           `json:"size"` // as recorded, bytes; 0 if missing
	Problem string          `json:"problem"`
	Tables  []digest.Digest `json:"tables,omitempty"` // that need it
}

// Check reads every object of the table (of all, if table is empty) and compares digests. It
// also reports objects that tables with a reference need and do not have. progress, if not
// nil, is called with bytes after each object.
//
// A damaged object is remembered as such: it counts as absent from then on, so that a Hydrate
// of its tables fetches it again, and its file stays until the new one takes its place.
func (s *Store) Check(ctx context.Context, table digest.Digest, progress func(done, total int64)) ([]CheckResult, error) {
	objects, total, err := s.objectsOf(table)
	if err != nil {
		return nil, err
	}
	var (
		bad  []CheckResult
		done int64
		buf  = make([]byte, 1<<20)
	)
	for _, o := range objects {
		switch err := s.checkObject(ctx, o.Digest, o.Size, buf); {
		case err == nil:
		case errdefs.IsDataLoss(err), errors.Is(err, syscall.EIO):
			o.Problem = err.Error()
			bad = append(bad, o)
		case errors.Is(err, fs.ErrNotExist):
			// Collected meanwhile, or reported as missing below.
		default:
			return bad, err
		}
		if done += o.Size; progress != nil {
			progress(done, total)
		}
	}
	if err := s.markDamaged(bad); err != nil {
		return bad, err
	}
	missing, err := s.Missing(ctx, table)
	if err != nil {
		return bad, err
	}
	for _, m := range missing {
		i := slices.IndexFunc(bad, func(b CheckResult) bool { return b.Digest == m.Digest })
		if i < 0 {
			bad = append(bad, m)
		} else {
			bad[i].Tables = m.Tables
		}
	}
	return bad, nil
}

// Missing returns the objects that a table (all tables with a reference, if it is empty)
// needs and does not have, or has damaged. It reads no content.
func (s *Store) Missing(ctx context.Context, table digest.Digest) ([]CheckResult, error) {
	needed := map[digest.Digest][]digest.Digest{} // tables by object
	err := s.db.View(func(tx *bbolt.Tx) error {
		tables := map[digest.Digest]bool{table: table != ""}
		err := each(tx, bucketRefs, func(_ string, r Ref) error {
			if table == "" && (r.Expires.IsZero() || r.Expires.After(time.Now())) {
				tables[r.Table] = true
			}
			return nil
		})
		if err != nil {
			return err
		}
		return each(tx, bucketTables, func(key string, t tableRecord) error {
			if tables[digest.Digest(key)] && t.Complete {
				for _, d := range t.Objects {
					needed[d] = append(needed[d], digest.Digest(key))
				}
			}
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	var out []CheckResult
	for d, tables := range needed {
		if !s.has(d) {
			out = append(out, CheckResult{Digest: d, Problem: ProblemMissing, Tables: tables})
		}
	}
	slices.SortFunc(out, func(a, b CheckResult) int { return slices.Compare(a.Tables, b.Tables) })
	return out, nil
}

func (s *Store) objectsOf(table digest.Digest) (objects []CheckResult, total int64, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		var only map[digest.Digest]bool
		if table != "" {
			t, err := load[tableRecord](tx, bucketTables, table.String())
			if err != nil {
				return err
			}
			only = map[digest.Digest]bool{}
			for _, d := range t.Objects {
				only[d] = true
			}
		}
		return each(tx, bucketObjects, func(key string, o objectRecord) error {
			if d := digest.Digest(key); table == "" || only[d] {
				objects = append(objects, CheckResult{Digest: d, Size: o.Size})
				total += o.Size
			}
			return nil
		})
	})
	return objects, total, err
}

func (s *Store) checkObject(ctx context.Context, d digest.Digest, size int64, buf []byte) error {
	f, err := s.root.Open(objectPath(d))
	if err != nil {
		return err
	}
	defer f.Close()
	h := verify.NewHash()
	var n int64
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		m, err := f.Read(buf)
		h.Write(buf[:m])
		n += int64(m)
		if err == io.EOF {
			return verify.Compare(d, h.Digest(), size, n)
		}
		if err != nil {
			return err
		}
	}
}

// markDamaged remembers which objects are not what they should be.
func (s *Store) markDamaged(bad []CheckResult) error {
	if len(bad) == 0 {
		return nil
	}
	return s.db.Update(func(tx *bbolt.Tx) error {
		for _, b := range bad {
			o, err := load[objectRecord](tx, bucketObjects, b.Digest.String())
			if errdefs.IsNotFound(err) {
				continue
			} else if err != nil {
				return err
			}
			o.Damaged = true
			if err := put(tx, bucketObjects, b.Digest.String(), o); err != nil {
				return err
			}
			s.log.Error("object is damaged", "digest", b.Digest, "bytes", b.Size, "err", b.Problem)
		}
		return nil
	})
}

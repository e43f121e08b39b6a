package store

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"slices"
	"syscall"

	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
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
	objects, err := s.db.Objects(table)
	if err != nil {
		return nil, err
	}
	var total int64
	for _, o := range objects {
		total += o.Size
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
			bad = append(bad, CheckResult{Digest: o.Digest, Size: o.Size, Problem: err.Error()})
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
	needed, err := s.db.Needed(table)
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
	var objects []digest.Digest
	for _, b := range bad {
		objects = append(objects, b.Digest)
		s.log.Error("object is damaged", "digest", b.Digest, "bytes", b.Size, "err", b.Problem)
	}
	return s.db.MarkDamaged(objects)
}

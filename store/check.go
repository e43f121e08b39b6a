package store

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"
)

// CheckResult is the state of one object that is not well.
type CheckResult struct {
	Digest  digest.Digest   `json:"digest"`
	Size    int64           `json:"size"` // as recorded, bytes
	Problem string          `json:"problem"`
	Tables  []digest.Digest `json:"tables,omitempty"` // that need it
}

// Check reads every object of the table (of all, if table is empty) and compares digests.
// What is wrong is moved out of the way, so that it can not be read and a Hydrate of its
// tables fetches it again; with dryRun it is only reported. progress, if not nil, is called
// with bytes after each object.
func (s *Store) Check(ctx context.Context, table digest.Digest, dryRun bool, progress func(done, total int64)) ([]CheckResult, error) {
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
		if err := s.checkObject(ctx, o.Digest, o.Size, buf); err != nil {
			if ctx.Err() != nil {
				return bad, ctx.Err()
			}
			o.Problem = err.Error()
			bad = append(bad, o)
		}
		if done += o.Size; progress != nil {
			progress(done, total)
		}
	}
	if len(bad) == 0 {
		return nil, nil
	}
	if err := s.blame(bad); err != nil || dryRun {
		return bad, err
	}
	return bad, s.quarantine(bad)
}

func (s *Store) objectsOf(table digest.Digest) (objects []CheckResult, total int64, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		var only []digest.Digest
		if table != "" {
			t, err := load[tableRecord](tx, bucketTables, table.String())
			if err != nil {
				return err
			}
			only = t.Objects
		}
		return each(tx, bucketObjects, func(key string, o objectRecord) error {
			d := digest.Digest(key)
			if table == "" || slices.Contains(only, d) {
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
	h := newHasher()
	var n int64
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		m, err := f.Read(buf)
		h.Write(buf[:m])
		n += int64(m)
		if err == io.EOF {
			return verify(d, h.digest(), size, n)
		}
		if err != nil {
			return err
		}
	}
}

// blame fills in the tables that need what is bad.
func (s *Store) blame(bad []CheckResult) error {
	return s.db.View(func(tx *bbolt.Tx) error {
		return each(tx, bucketTables, func(key string, t tableRecord) error {
			for i := range bad {
				if slices.Contains(t.Objects, bad[i].Digest) {
					bad[i].Tables = append(bad[i].Tables, digest.Digest(key))
				}
			}
			return nil
		})
	})
}

// quarantine takes objects out of reach and keeps them for a look.
func (s *Store) quarantine(bad []CheckResult) error {
	s.gcMu.Lock()
	defer s.gcMu.Unlock()
	err := s.db.Update(func(tx *bbolt.Tx) error {
		return forget(tx, bad, func(r CheckResult) digest.Digest { return r.Digest })
	})
	if err != nil {
		return err
	}
	for _, r := range bad {
		to := filepath.Join(quarantineDir, r.Digest.Encoded())
		if err := s.root.Rename(objectPath(r.Digest), to); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("quarantine object %s: %w", r.Digest, err)
		}
		s.log.Error("object is damaged and was moved away", "digest", r.Digest, "path", filepath.Join(s.dir, to), "err", r.Problem)
	}
	return nil
}

package store

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/ballast-dev/ballast/store/boltfile"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/hydrate"
	"github.com/ballast-dev/ballast/store/internal/object"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// recoverTable records a table again that is an object, and returns what it needs.
func (s *Store) recoverTable(d digest.Digest) (needs []digest.Digest, err error) {
	p, err := s.objects.Read(d, filetable.MaxSize)
	if err != nil {
		s.log.Warn("nothing is collected until a table is there again", "table", d, "err", err)
		return nil, fmt.Errorf("table %s is needed, and is not on the node: %w: %w", d, err, errdefs.ErrNotFound)
	}
	t, err := filetable.Decode(p)
	if err != nil {
		return nil, err
	}
	rec, err := s.resolveRecord(d, t)
	if err != nil && !errdefs.IsUnavailable(err) {
		return nil, err
	}
	if err := s.db.PutTable(d, rec); err != nil {
		return nil, err
	}
	s.log.Info("table is known again", "table", d, "objects", len(rec.Objects), "partly", rec.Partly)
	return rec.Objects, s.settleAgain(d, t)
}

// settleAgain is settleTable for a table that may lack something.
func (s *Store) settleAgain(d digest.Digest, t *filetable.Table) error {
	err := s.settleTable(d, t)
	if errdefs.IsUnavailable(err) || errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// proved tells the readers of files that they are objects after all.
func (s *Store) proved(objects []digest.Digest) {
	for _, d := range objects {
		s.arrived(hydrate.Publication{Digest: d})
	}
}

// settleProved looks which of the tables that are referred to and not complete are complete, now that
// what was doubted is hashed.
func (s *Store) settleProved(ctx context.Context) {
	for _, r := range s.db.Refs("") {
		rec, err := s.db.Table(r.Table)
		if err != nil || !rec.Broken {
			continue
		}
		t, err := s.Table(ctx, r.Table)
		if err == nil {
			err = s.settleAgain(r.Table, t)
		}
		if err != nil {
			s.log.Error("look whether a model is complete", "table", r.Table, "err", err)
		}
	}
}

// Doubts are what the store does not believe, or does not know.
type Doubts struct {
	// SetAside are the paths of databases that were damaged. A new one took their place.
	SetAside []string `json:"setAside,omitempty"`

	// Rebuilt is when the database was last lost or damaged. Pins of that time may be lost.
	Rebuilt time.Time `json:"rebuilt,omitzero"`

	// Unresolved are the references of which it is not known what they need. Nothing is collected
	// while there are any.
	Unresolved []Ref `json:"unresolved,omitempty"`

	// Damaged are the paths of files that are no objects any more because they are wrong, and
	// Unproved is how many bytes are in files that are objects when they are hashed.
	Damaged  []string `json:"damaged,omitempty"`
	Unproved int64    `json:"unproved,omitempty"`
}

// Doubts returns what the store does not believe.
func (s *Store) Doubts(ctx context.Context) (d Doubts, err error) {
	if d.SetAside, err = boltfile.SetAside(s.dbPath()); err != nil {
		return d, err
	}
	if d.Rebuilt, err = s.db.Rebuilt(); err != nil {
		return d, err
	}
	d.Unresolved = s.db.Unresolved()
	for _, f := range s.objects.Doubted() {
		d.Unproved += f.Size
	}
	damaged, err := s.objects.Damaged()
	for _, f := range damaged {
		d.Damaged = append(d.Damaged, filepath.Join(s.dir, object.DamagedDir, f.Digest.Encoded()))
	}
	return d, err
}

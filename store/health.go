package store

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/ballast-dev/ballast/store/boltfile"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/object"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// recoverTable records a table again from its object, and returns the objects it needs.
func (s *Store) recoverTable(d digest.Digest) (needs []digest.Digest, err error) {
	p, err := s.objects.Read(d, filetable.MaxSize)
	if err != nil {
		s.log.Warn("garbage collection stops until a table is present again", "table", d, "err", err)
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
	s.log.Info("table recovered", "table", d, "objects", len(rec.Objects), "partly", rec.Partly)
	return rec.Objects, s.completePresent(d, t)
}

// completePresent is completeTable for a table whose files may be missing.
func (s *Store) completePresent(d digest.Digest, t *filetable.Table) error {
	err := s.completeTable(d, t)
	if errdefs.IsUnavailable(err) || errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// announce tells readers that files without a record have become objects.
func (s *Store) announce(objects []digest.Digest) {
	for _, d := range objects {
		s.exposed.Arrived(d, "")
	}
}

// completeRecovered checks which referenced incomplete tables have become complete by hashing files
// without a record.
func (s *Store) completeRecovered() {
	for _, d := range s.db.Broken() {
		t, err := s.Table(d)
		if err == nil {
			err = s.completePresent(d, t)
		}
		if err != nil {
			s.log.Error("check whether a model is complete", "table", d, "err", err)
		}
	}
}

// Health has the known problems of the store: damage and loss that are not due to a crash.
//
//	store.db lost or damaged     rebuilt from intact records (package meta); AddRef reads unrecorded
//	                             tables from their objects
//	file without a record        hashed before it is an object (package object)
//	object wrong, short, missing set aside and removed from all views; its tables are broken until
//	                             Hydrate, or Check of files set aside, repairs them
//	table wrong or missing       its references are unresolved until the table is stored again
type Health struct {
	// SetAside are the paths of damaged databases that were replaced.
	SetAside []string

	// Rebuilt is the time when the database was last rebuilt. Pins may have been lost.
	Rebuilt time.Time

	// Unresolved are the references whose needed objects are unknown. While there are any, garbage
	// collection stops.
	Unresolved []Ref

	// Damaged are the paths of damaged files that were set aside. Unrecorded is the size in bytes of
	// files that become objects when they have been hashed.
	Damaged []string

	// Scrubbed is when the last Scrub that has compared all objects began; zero if none has.
	Scrubbed   time.Time
	Unrecorded int64
}

// Health returns the known problems of the store.
func (s *Store) Health() (d Health, err error) {
	if d.SetAside, err = boltfile.SetAside(s.dbPath()); err != nil {
		return d, err
	}
	if d.Rebuilt, err = s.db.Rebuilt(); err != nil {
		return d, err
	}
	scrub, err := s.db.Scrub()
	if err != nil {
		return d, err
	}
	d.Scrubbed, d.Unresolved = scrub.Whole, s.db.Unresolved()
	for _, f := range s.objects.Unrecorded() {
		d.Unrecorded += f.Size
	}
	damaged, err := s.objects.Damaged()
	for _, f := range damaged {
		d.Damaged = append(d.Damaged, filepath.Join(s.dir, object.DamagedDir, f.Digest.Encoded()))
	}
	return d, err
}

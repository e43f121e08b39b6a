package store

import (
	"context"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/hydrate"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

type (
	// Progress is a moment of a Hydrate, for one blob or file.
	Progress = hydrate.Progress

	// HydrateOptions are the settings of one Hydrate.
	HydrateOptions = hydrate.Options
)

// Hydrate returns when every file of the table is a complete, verified object. Blobs that
// are there already, or whose contents are, are not fetched; a blob that is being fetched
// from the same sources is waited for. If ctx ends first, the work goes on for Options.Linger.
//
// It returns errdefs.ErrResourceExhausted if the space does not suffice, *verify.Error if
// bytes are wrong, and errdefs.ErrInvalidArgument if an archive breaks a rule.
func (s *Store) Hydrate(ctx context.Context, table digest.Digest, o HydrateOptions) error {
	t, err := s.Table(ctx, table)
	if err != nil {
		return err
	}
	if rec, err := s.db.Table(table); err == nil {
		s.proved(s.objects.Prove(ctx, rec.Objects...))
	}
	if !s.has(table) { // it is damaged, or was collected; what is in memory is right
		p, err := t.Encode()
		if err != nil {
			return err
		}
		if _, err := s.PutBytes(ctx, p); err != nil {
			return err
		}
	}
	group := transfer.GroupKey(o.Sources)
	s.tell(table, group, nil)
	err = s.engine.Hydrate(ctx, table, t, o, func() error { return s.settleTable(table, t) })
	if err != nil && ctx.Err() == nil {
		s.tell(table, group, err)
	}
	return err
}

// Hydrating returns the state of the blobs of a table that is being hydrated, and whether it is.
func (s *Store) Hydrating(table digest.Digest) ([]Progress, bool) { return s.engine.Running(table) }

// SetRate limits the transfers that nobody waits for, all together, to a number of bytes a
// second; 0 is no limit.
func (s *Store) SetRate(bytes int64) { s.scheduler.SetRate(bytes) }

// Pause stops the transfers that nobody waits for, until Resume. Readers go on to get what they
// read.
func (s *Store) Pause() { s.scheduler.SetPaused(true) }

// Resume ends a Pause.
func (s *Store) Resume() { s.scheduler.SetPaused(false) }

// Paused says whether Pause was called and Resume was not.
func (s *Store) Paused() bool { return s.scheduler.Paused() }

// host is what the store is to those who bring bytes.
type host struct{ *Store }

// Has implements hydrate.Objects.
func (h host) Has(b filetable.Blob, from *transfer.Sources) (bool, error) {
	s := h.Store
	if b.Archive == filetable.ArchiveNone {
		return s.hasBlob(b, from)
	}
	contents, err := s.db.Contents(b.Digest)
	if errdefs.IsNotFound(err) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	var names []string
	if from != nil {
		names = namesOf(from.Order())
	}
	for _, c := range contents {
		if c.Type == filetable.TypeReg && !s.mayHave(c.Digest, names) {
			return false, nil
		}
	}
	return true, nil
}

// Assembled implements hydrate.Objects.
func (h host) Assembled(f filetable.File) (digest.Digest, error) { return h.assembled(f) }

// Publish implements hydrate.Objects.
func (h host) Publish(files []hydrate.Publication, found meta.Arrival) error {
	return h.publish(files, found)
}

// assembled returns the digest of a file with parts: that in the table, or what it was found to
// be; empty if neither is known.
func (s *Store) assembled(f filetable.File) (digest.Digest, error) {
	if f.Digest != "" {
		return f.Digest, nil
	}
	d, err := s.db.Assembled(hydrate.RecipeOf(f.Source))
	if errdefs.IsNotFound(err) {
		return "", nil
	}
	return d, err
}

package store

import (
	"context"
	"errors"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/hydrate"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// StateComplete is the State of a Progress whose bytes are objects and were not before.
const StateComplete = hydrate.StateComplete

type (
	// Progress is the progress of one blob or file of a Hydrate.
	Progress = hydrate.Progress

	// Work describes a running Hydrate, or one that continues after its callers have gone.
	Work = hydrate.Work

	// HydrateOptions are the settings of one Hydrate.
	HydrateOptions = hydrate.Options
)

// Hydrate returns when every file of the table is a complete, verified object. Blobs that are
// present, or whose contents are, are not fetched; a blob that is being fetched from the same
// sources is waited for. If ctx ends first, the work continues for Options.Linger.
//
// It returns errdefs.ErrResourceExhausted if there is not enough space, *verify.Error if bytes are
// wrong, and errdefs.ErrInvalidArgument if an archive is invalid.
func (s *Store) Hydrate(ctx context.Context, table digest.Digest, o HydrateOptions) error {
	t, err := s.Table(ctx, table)
	if err != nil {
		return err
	}
	if rec, err := s.db.Table(table); err == nil {
		s.announce(s.objects.Recover(ctx, rec.Objects...))
	}
	if !s.has(table) { // damaged or collected; the copy in memory is right
		p, err := t.Encode()
		if err != nil {
			return err
		}
		if _, err := s.PutBytes(ctx, p); err != nil {
			return err
		}
	}
	return s.engine.Hydrate(ctx, table, t, o)
}

// Hydrating returns the progress of the blobs of a table, and whether the table is being hydrated.
func (s *Store) Hydrating(table digest.Digest) ([]Progress, bool) { return s.engine.Running(table) }

// Work returns everything that is being hydrated, oldest first.
func (s *Store) Work() []Work { return s.engine.Work() }

// Abandon cancels the hydrations of tables, or all if there are none, that no call of Hydrate waits
// for, and returns their number. What they have downloaded is kept.
func (s *Store) Abandon(ctx context.Context, tables ...digest.Digest) (int, error) {
	return s.engine.Abandon(ctx, tables...)
}

// SetRate limits the total rate of background transfers, in bytes a second; 0 is no limit.
func (s *Store) SetRate(bytes int64) { s.scheduler.SetRate(bytes) }

// Pause pauses background transfers until Resume. Reads of missing bytes continue.
func (s *Store) Pause() { s.scheduler.SetPaused(true) }

// Resume ends a Pause.
func (s *Store) Resume() { s.scheduler.SetPaused(false) }

// Paused reports whether background transfers are paused.
func (s *Store) Paused() bool { return s.scheduler.Paused() }

// host implements the interfaces that the packages below use to call the store.
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

// Began implements hydrate.Objects.
func (h host) Began(table digest.Digest, group string) {
	h.notify(table, group, nil)
	// A garbage collection that started before must end first, so that what it left can be found.
	h.objects.Pause()()
}

// Ended implements hydrate.Objects. Readers wait on after a canceled hydration, whose caller starts another.
func (h host) Ended(table digest.Digest, t *filetable.Table, group string, err error) error {
	if err == nil {
		err = h.settleTable(table, t)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		h.notify(table, group, err)
	}
	return err
}

// Assembled implements hydrate.Objects.
func (h host) Assembled(f filetable.File) (digest.Digest, error) { return h.assembled(f) }

// Publish implements hydrate.Objects.
func (h host) Publish(files []hydrate.Publication, found meta.Arrival) error {
	return h.publish(files, found)
}

// assembled returns the digest of a file with parts, from the table or from its assembly, or "" if
// it is unknown.
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

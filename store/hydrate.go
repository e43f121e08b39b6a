package store

import (
	"context"

	"github.com/ballast-dev/ballast/store/internal/hydrate"
	"github.com/opencontainers/go-digest"
)

// StateComplete is the State of a Progress whose bytes are objects and were not before.
const StateComplete = hydrate.StateComplete

type (
	// Progress is the progress of one blob or file of a Hydrate.
	Progress = hydrate.Progress

	// Work describes a running Hydrate, or one that continues after its callers have gone.
	Work = hydrate.Work

	// Limit is what limits the rate of Work.
	Limit = hydrate.Limit

	// A Sniffer finds the end of a header in the bytes of a file.
	Sniffer = hydrate.Sniffer

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
	t, err := s.Table(table)
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
		if _, err := s.PutBytes(p); err != nil {
			return err
		}
	}
	if t, err = s.windowed(table); err != nil {
		return err
	}
	return s.engine.Hydrate(ctx, table, t, o)
}

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

package store

import (
	"context"

	"github.com/ballast-dev/ballast/store/internal/expose"
	"github.com/opencontainers/go-digest"
)

type (
	// ExposeOptions are the settings of one Expose.
	ExposeOptions = expose.Request

	// A View is the set of files that may be read for one reference, by digest.
	View = expose.View

	// Early describes the incomplete files of a table in a view.
	Early = expose.Early
)

// Expose makes the files of a table readable in a view before they are complete (View.ReadAt),
// until the reference of the view is removed or, for the common view, the last reference to the
// table. It also adds complete files to the view if the sources may have them. It fetches nothing
// but the byte for Probe; Hydrate fetches the rest. It may be called again with other sources.
//
// It returns errdefs.ErrFailedPrecondition, with the reason, if the table can be read only when
// complete, and the error of the sources if none has the bytes.
func (s *Store) Expose(ctx context.Context, table digest.Digest, o ExposeOptions) error {
	return s.exposed.Expose(ctx, table, o)
}

// View returns the view of a reference, or the common view for an empty name.
func (s *Store) View(name string) View { return s.exposed.View(name) }

// Present adds to the view of a reference the complete files of its table that its sources may
// have. It creates the directory even if it returns errdefs.ErrNotFound, for an unknown reference
// or table.
func (s *Store) Present(ctx context.Context, view string) error { return s.exposed.Present(ctx, view) }

// Early returns the views that show incomplete files of a table.
func (s *Store) Early(table digest.Digest) map[string]Early { return s.exposed.Early(table) }

// AwaitSmall waits for the files of a table in a view that can be read only when complete. Hydrate
// must be running.
func (s *Store) AwaitSmall(ctx context.Context, view string, table digest.Digest) error {
	return s.exposed.AwaitSmall(ctx, view, table)
}

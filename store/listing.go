package store

import (
	"context"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
)

// Listing is Files, but nothing is asked of the files: they may be absent. It returns
// errdefs.ErrNotFound if the table is not known, and errdefs.ErrUnavailable if not all of its files
// are, because an archive was never unpacked.
func (s *Store) Listing(ctx context.Context, table digest.Digest) ([]filetable.File, error) {
	return s.filesOf(ctx, table, func(filetable.File) error { return nil })
}

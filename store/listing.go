package store

import (
	"context"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
)

// Listing is Files without checking that the files are present. It returns errdefs.ErrNotFound for
// an unknown table, and errdefs.ErrUnavailable if some files are unknown because an archive was
// never unpacked.
func (s *Store) Listing(ctx context.Context, table digest.Digest) ([]filetable.File, error) {
	return s.filesOf(ctx, table, func(filetable.File) error { return nil })
}

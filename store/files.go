package store

import (
	"context"
	"fmt"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Files returns the files of a table as shown: sorted by path, without duplicates, every regular
// file with its digest. It returns errdefs.ErrUnavailable if a file is not complete, and
// errdefs.ErrInvalidArgument if layers have different content for one path.
func (s *Store) Files(ctx context.Context, table digest.Digest) ([]filetable.File, error) {
	return s.exposed.FilesOf(ctx, table, func(f filetable.File) error {
		if s.has(f.Digest) {
			return nil
		}
		return fmt.Errorf("file %q (%s) is not on the node: %w", f.Path, f.Digest, errdefs.ErrUnavailable)
	})
}

// Listing is Files without checking that the files are present. It returns errdefs.ErrNotFound for
// an unknown table, and errdefs.ErrUnavailable if some files are unknown because an archive was
// never unpacked.
func (s *Store) Listing(ctx context.Context, table digest.Digest) ([]filetable.File, error) {
	return s.exposed.FilesOf(ctx, table, func(filetable.File) error { return nil })
}

package hydrate

import (
	"context"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
)

// Presence returns the size of a table, and how many bytes of it are present, in objects or staged
// by any group.
func (e *Engine) Presence(ctx context.Context, t *filetable.Table) (total, done int64, err error) {
	_, places, err := e.assemblies(ctx, t, "", nil)
	if err != nil {
		return 0, 0, err
	}
	for _, target := range Plan(t, "") {
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
		total += target.Blob.Size
		// An object of another size than in the table is useless.
		if ok, err := e.hasTarget(&target, places, nil); ok && err == nil {
			done += target.Blob.Size
			continue
		}
		done += e.staged(&target)
	}
	return total, done, nil
}

// staged returns the number of staged bytes of an incomplete target.
func (e *Engine) staged(t *Target) (n int64) {
	if len(t.Files) == 0 {
		return e.most(t.Blob.Digest, t.Blob.Size, nil)
	}
	for _, f := range t.Files {
		most := e.most(f.File.Digest, f.File.Size, f.Layout.Grid)
		if f.Layout.Chained() { // it may be staged without its chain, in groups of equal size
			most = max(most, e.most(f.File.Digest, f.File.Size, nil))
		}
		n += most
	}
	return n
}

// most returns the largest number of staged bytes of a blob in one directory.
func (e *Engine) most(d digest.Digest, size int64, grid func() []int64) (n int64) {
	for _, dir := range e.Area.Dirs(d) {
		n = max(n, e.Area.Marked(dir, size, grid))
	}
	return n
}

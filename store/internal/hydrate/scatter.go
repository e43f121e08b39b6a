package hydrate

import (
	"cmp"
	"context"
	"hash/maphash"
	"slices"

	"github.com/ballast-dev/ballast/store/internal/chunkfile"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// hashedLater returns the size in bytes up to which files that are hashed whole may arrive in any order: the page cache
// has what is hashed afterwards.
func hashedLater() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit) / 4
}

// scatters reports whether the groups of a target may arrive in any order. room is the size in bytes of those that may
// still be hashed later.
func (t *Target) scatters(room *int64) bool {
	if len(t.Files) != 1 || t.Blob.Size <= staging.ChunkSize {
		return false
	}
	if t.Files[0].Layout.Stated {
		return true
	}
	if t.Blob.Size > *room {
		return false
	}
	*room -= t.Blob.Size
	return true
}

// scatter sorts what nodes share in pieces of a size into an order that no other engine has: the pieces of parts, and
// the large files among the missing targets. Whoever asks for a piece first gets it from the registry and sends it to
// all others, so nodes that ask in one order wait for one of them.
func (e *Engine) scatter(h *hydration, parts []chunkfile.Part, piece int64, missing []int) {
	type key struct {
		blob  digest.Digest
		piece int64
	}
	at := make(map[chunkfile.Part]uint64, len(parts))
	for _, p := range parts {
		start, _ := p.File.Layout.Span()
		off, _ := p.File.Layout.Part(p.Group)
		at[p] = maphash.Comparable(e.own, key{p.File.Layout.From.Digest, (start + off) / piece})
	}
	slices.SortStableFunc(parts, func(a, b chunkfile.Part) int { return cmp.Compare(at[a], at[b]) })
	turn := func(i int) uint64 {
		if h.targets[i].small() {
			return 0
		}
		return maphash.String(e.own, h.targets[i].Name) // one for all fragments of a file
	}
	slices.SortStableFunc(missing, func(a, b int) int { return cmp.Compare(turn(a), turn(b)) })
}

// inOwnOrder fetches parts. Readers do not follow them: they read in another order.
func (e *Engine) inOwnOrder(ctx context.Context, h *hydration, parts []chunkfile.Part) {
	if err := chunkfile.NewSequence(parts).Fill(ctx, h.from.FirstKey); err != nil && ctx.Err() == nil {
		e.Log.Debug("the pieces of the model are not fetched in an order of this node", "table", h.table, "err", err)
	}
}

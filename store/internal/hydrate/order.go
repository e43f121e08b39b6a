package hydrate

import (
	"cmp"
	"context"
	"slices"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/chunkfile"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/opencontainers/go-digest"
)

// fragmentOrder returns the positions of the fragments of a table in its files.
func fragmentOrder(t *filetable.Table) map[digest.Digest]int64 {
	order := map[digest.Digest]int64{}
	for _, f := range t.Files {
		if f.Source == nil {
			continue
		}
		for _, part := range f.Source.Parts {
			if _, ok := order[part.Blob]; !ok && part.Blob != "" {
				order[part.Blob] = int64(len(order))
			}
		}
	}
	return order
}

// rank returns the priority of a target, lowest first: small files, then fragments in the order in
// which their file is hashed.
func (t *Target) rank(order map[digest.Digest]int64) int64 {
	const fragments = 1 << 20 // size of a file that comes before fragments
	switch {
	case len(t.Files) > 1:
		return -1
	case t.Blob.Archive == filetable.ArchiveFragments:
		return fragments + order[t.Blob.Digest]
	case t.Blob.Size > fragments:
		return t.Blob.Size + int64(len(order))
	}
	return t.Blob.Size
}

// A wish is what a recorded order has of the missing targets. It is fetched before the rest.
type wish struct {
	parts []chunkfile.Part // of large files
	early map[int]bool     // other targets, which are fetched whole
}

// An ahead is a large file of which the order has parts. It is acquired until the end of the hydration.
type ahead struct {
	file *chunkfile.File
	flow *transfer.Flow // also of the fetch of the rest
}

// wish returns what an order has of the missing targets, and sorts these: the early ones first, and then those with parts.
func (e *Engine) wish(h *hydration, t *filetable.Table, order []filetable.Range, missing []int) wish {
	w := wish{early: map[int]bool{}}
	if len(order) == 0 {
		return w
	}
	at := h.targetsOf(t, missing)
	turn := map[int]int{} // first position in order, by target
	all := map[int]*ahead{}
	e.mu.Lock()
	sources := h.list
	e.mu.Unlock()
	for n, r := range order {
		for _, in := range at[r.Path] {
			if _, ok := turn[in.target]; !ok {
				turn[in.target] = n
				w.early[in.target] = in.file.Layout == nil
			}
			if in.file.Layout == nil {
				continue
			}
			a := all[in.target]
			if a == nil {
				f := in.file.File
				a = &ahead{e.Files.Acquire(f.Digest, f.Size, f.Path, in.file.Layout), e.Scheduler.NewFlow(transfer.Background).Limit(h.limiter)}
				a.file.Sources.Set(h.key(), sources)
				all[in.target] = a
			}
			for g := in.file.Layout.Find(r.Offset); g <= in.file.Layout.Find(r.End()-1); g++ {
				w.parts = append(w.parts, chunkfile.Part{File: a.file, Group: g, Flow: a.flow})
			}
		}
	}
	class := func(i int) int {
		switch {
		case w.early[i]:
			return 0
		case all[i] != nil:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(missing, func(a, b int) int { return cmp.Or(cmp.Compare(class(a), class(b)), cmp.Compare(turn[a], turn[b])) })
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ahead, h.ordered = all, len(turn) > 0
	if h.awaited {
		h.promoteAhead()
	}
	return w
}

// promoteAhead gives what is fetched ahead the priority of awaited work. The caller holds mu.
func (h *hydration) promoteAhead() {
	for _, a := range h.ahead {
		a.flow.Promote(transfer.Soon)
	}
}

// release releases the files of a wish.
func (wish) release(e *Engine, h *hydration) {
	for _, a := range h.ahead {
		a.file.Sources.Drop(h.key())
		e.Files.Release(a.file)
	}
}

// An inTarget is a target with bytes of a file.
type inTarget struct {
	target int
	file   ChunkedFile // the only one of the target, if it has several groups; otherwise zero
}

// targetsOf returns the missing targets with the bytes of each file of a table, by path.
func (h *hydration) targetsOf(t *filetable.Table, missing []int) map[string][]inTarget {
	of := map[digest.Digest]inTarget{} // by content
	for _, i := range missing {
		target := &h.targets[i]
		for _, d := range target.digests() {
			of[d] = inTarget{target: i}
		}
		if len(target.Files) == 1 && target.Blob.Size > staging.ChunkSize {
			of[target.Blob.Digest] = inTarget{i, target.Files[0]}
		}
	}
	at := map[string][]inTarget{}
	for _, f := range t.Files {
		if f.Source == nil {
			continue
		}
		content := f.Digest
		if _, ok := of[content]; !ok { // a member of an archive
			content = f.Source.Blob
		}
		from := []digest.Digest{content}
		for _, part := range f.Source.Parts {
			from = append(from, part.Blob)
		}
		for _, d := range from {
			if in, ok := of[d]; ok {
				at[f.Path] = append(at[f.Path], in)
			}
		}
	}
	return at
}

// inOrder fetches the parts, and makes readers follow them until ctx ends.
func (e *Engine) inOrder(ctx context.Context, h *hydration, parts []chunkfile.Part) {
	q := chunkfile.NewSequence(parts)
	q.Attach()
	context.AfterFunc(ctx, q.Detach)
	if err := q.Fill(ctx, h.from.Payer); err != nil && ctx.Err() == nil {
		// The fetches of the files meet the same error, or can do without ranges.
		e.Log.Debug("the order of the model is not followed to its end", "table", h.table, "err", err)
	}
}

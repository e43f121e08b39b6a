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
	next []int32        // by group: itself if the wish does not have it, otherwise a later one to go on with
}

func (e *Engine) newAhead(h *hydration, in ChunkedFile) *ahead {
	f := in.File
	a := &ahead{
		file: e.Files.Acquire(f.Digest, f.Size, f.Path, in.Layout),
		flow: e.Scheduler.NewFlow(transfer.Background).Limit(h.limiter),
		next: make([]int32, in.Layout.Groups()+1),
	}
	for g := range a.next {
		a.next[g] = int32(g)
	}
	return a
}

// free returns the first group from g on that the wish does not have, or the number of groups.
func (a *ahead) free(g int) int {
	for int(a.next[g]) != g {
		a.next[g] = a.next[a.next[g]] // so that no group is passed often
		g = int(a.next[g])
	}
	return g
}

// wish returns what an order has of the missing targets, and sorts these: the early ones first, and then those with
// parts. Strangers write orders: it takes the time and memory of the groups and parts that the table has and of the
// number of ranges, whatever these name, also by several paths of one content.
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
		in := at[r.Path]
		if in == nil {
			continue
		}
		for _, i := range in.whole {
			if _, ok := turn[i]; !ok {
				turn[i], w.early[i] = n, true
			}
		}
		in.whole = nil // once for all ranges
		layout := in.file.Layout
		if layout == nil {
			continue
		}
		a := all[in.target]
		if a == nil {
			a = e.newAhead(h, in.file)
			a.file.Sources.Set(h.key(), sources)
			all[in.target], turn[in.target] = a, n
		}
		last := layout.Find(r.End() - 1)
		for g := a.free(layout.Find(r.Offset)); g <= last; g = a.free(g) {
			w.parts = append(w.parts, chunkfile.Part{File: a.file, Group: g, Flow: a.flow})
			a.next[g]++
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

// inTargets are the targets with bytes of a file.
type inTargets struct {
	whole  []int       // fetched whole
	target int         // fetched by groups, if file has a layout
	file   ChunkedFile // the only one of that target
}

// targetsOf returns the missing targets with the bytes of each file of a table, by path.
func (h *hydration) targetsOf(t *filetable.Table, missing []int) map[string]*inTargets {
	of := map[digest.Digest]int{} // by content
	chunked := map[int]ChunkedFile{}
	for _, i := range missing {
		target := &h.targets[i]
		for _, d := range target.digests() {
			of[d] = i
		}
		if len(target.Files) == 1 && target.Blob.Size > staging.ChunkSize {
			of[target.Blob.Digest] = i
			chunked[i] = target.Files[0]
		}
	}
	at := map[string]*inTargets{}
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
		var in inTargets
		for _, d := range from {
			i, ok := of[d]
			switch file, byGroups := chunked[i]; {
			case !ok:
			case byGroups:
				in.target, in.file = i, file // parts of a file are fragments: they have no groups
			default:
				in.whole = append(in.whole, i)
			}
		}
		if in.whole != nil || in.file.Layout != nil {
			at[f.Path] = &in
		}
	}
	return at
}

// inOrder fetches the parts, and makes readers follow them until ctx ends.
func (e *Engine) inOrder(ctx context.Context, h *hydration, parts []chunkfile.Part) {
	q := chunkfile.NewSequence(parts)
	q.Attach()
	context.AfterFunc(ctx, q.Detach)
	if err := q.Fill(ctx, h.from.FirstKey); err != nil && ctx.Err() == nil {
		// The fetches of the files meet the same error, or can do without ranges.
		e.Log.Debug("the order of the model is not followed to its end", "table", h.table, "err", err)
	}
}

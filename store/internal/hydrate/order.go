package hydrate

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"

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

// maxSmall is the size in bytes up to which a file comes before the weights: configs, templates and tokenizers.
const maxSmall = 64 << 20 // 64 MiB

// weights are the ends of the names of files with weights, whatever their size.
var weights = []string{".safetensors", ".gguf", ".mmproj", ".bin", ".pt", ".pth", ".ckpt", ".npz", ".onnx", ".h5"}

// small reports whether a target comes before the weights.
func (t *Target) small() bool {
	if len(t.Files) > 1 {
		return true
	}
	name := strings.ToLower(t.Name)
	return t.Blob.Archive != filetable.ArchiveFragments && t.Blob.Size <= maxSmall &&
		!slices.ContainsFunc(weights, func(end string) bool { return strings.HasSuffix(name, end) })
}

// serial reports whether a target is a file by itself, which loaders read from its begin to its end.
func (t *Target) serial() bool { return len(t.Files) == 1 || t.Blob.PlainTar() }

// compare compares the turns of targets: small files, smallest first, then the others by name, never by size, and
// fragments in the order in which their file is hashed.
func (t *Target) compare(o *Target, order map[digest.Digest]int64) int {
	size := func(t *Target) int64 {
		switch {
		case !t.small():
			return math.MaxInt64
		case len(t.Files) > 1:
			return -1
		}
		return t.Blob.Size
	}
	return cmp.Or(cmp.Compare(size(t), size(o)), compareNames(t.Name, o.Name), cmp.Compare(order[t.Blob.Digest], order[o.Blob.Digest]))
}

// compareNames compares paths, with numbers in them by value.
func compareNames(a, b string) int {
	number := func(s string) string { return s[:len(s)-len(strings.TrimLeft(s, "0123456789"))] }
	for a != "" && b != "" {
		n, m := number(a), number(b)
		c, skipA, skipB := cmp.Compare(a[0], b[0]), 1, 1
		if n != "" && m != "" {
			x, y := strings.TrimLeft(n, "0"), strings.TrimLeft(m, "0")
			c, skipA, skipB = cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y)), len(n), len(m)
		}
		if c != 0 {
			return c
		}
		a, b = a[skipA:], b[skipB:]
	}
	return cmp.Compare(len(a), len(b))
}

// A wish is what a hydration fetches before the rest: what a recorded order has of the missing targets, and then what
// loaders read first.
type wish struct {
	parts []chunkfile.Part // of large files, from a recorded order
	whole map[int]bool     // other targets in a recorded order, which are fetched whole
	early map[int]bool     // these and the small ones, which are fetched whole
	heads []*ahead         // large files of which the head is fetched
	own   []chunkfile.Part // of large files, without parts, in an order that no other node has, after the heads
}

// An ahead is a large file of which the wish has parts, or the head. It is acquired until the end of the hydration.
type ahead struct {
	file *chunkfile.File
	flow *transfer.Flow // also of the fetch of the rest
	old  bool           // some bytes were staged before
	next []int32        // by group: itself if the wish does not have it, otherwise a later one to go on with
}

func (e *Engine) newAhead(h *hydration, in ChunkedFile, sources []transfer.Source) *ahead {
	f := in.File
	a := &ahead{
		file: e.Files.Acquire(f.Digest, f.Size, f.Path, in.Layout),
		flow: e.Scheduler.NewFlow(transfer.Background).Limit(h.limiter),
		old:  e.Area.Marked(in.Layout.Dir(f.Digest), f.Size, in.Layout.Grid) > 0,
		next: make([]int32, in.Layout.Groups()+1),
	}
	for g := range a.next {
		a.next[g] = int32(g)
	}
	a.file.Sources.Set(h.key(), sources)
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

// wish returns what is fetched before the rest, and sorts the missing targets: those that an order has whole, small
// ones, those with parts in the order, the others. Strangers write orders: it takes the time and memory of the groups
// and parts that the table has and of the number of ranges, whatever these name, also by several paths of one content.
//
// An order may be what readers have read in the moments before the hydration began, so it does not replace what loaders
// read first.
func (e *Engine) wish(h *hydration, t *filetable.Table, order []filetable.Range, missing []int) wish {
	w := wish{whole: map[int]bool{}, early: map[int]bool{}}
	all := map[int]*ahead{}
	e.mu.Lock()
	sources := h.list
	e.mu.Unlock()
	ahead := func(i int, in ChunkedFile) *ahead {
		if all[i] == nil {
			all[i] = e.newAhead(h, in, sources)
		}
		return all[i]
	}
	turn := e.recorded(h, t, order, missing, &w, ahead)
	piece, room := h.from.Piece(), hashedLater()
	for _, i := range missing {
		target := &h.targets[i]
		if w.whole[i] || target.small() {
			w.early[i] = true
			continue
		}
		head, scattered := target.hasHead(), piece > 0 && target.scatters(&room)
		if !head && !scattered {
			continue
		}
		a := ahead(i, target.Files[0])
		if head {
			w.heads = append(w.heads, a)
		}
		if scattered {
			for g := a.free(0); g < a.file.Layout.Groups(); g = a.free(g + 1) {
				w.own = append(w.own, chunkfile.Part{File: a.file, Group: g, Flow: a.flow})
			}
		}
	}
	if piece > 0 {
		e.scatter(h, w.own, piece, missing)
	}
	class := func(i int) int {
		_, ordered := turn[i]
		switch {
		case w.whole[i]:
			return 0
		case w.early[i]:
			return 1
		case ordered:
			return 2
		}
		return 3
	}
	slices.SortStableFunc(missing, func(a, b int) int { return cmp.Or(cmp.Compare(class(a), class(b)), cmp.Compare(turn[a], turn[b])) })
	h.setAhead(all, len(turn) > 0)
	return w
}

// recorded adds to w what an order has of the missing targets, and returns the positions of their first ranges in it.
func (e *Engine) recorded(
	h *hydration, t *filetable.Table, order []filetable.Range, missing []int, w *wish, ahead func(int, ChunkedFile) *ahead,
) (turn map[int]int) {
	turn = map[int]int{}
	if len(order) == 0 {
		return turn
	}
	at := h.targetsOf(t, missing)
	for n, r := range order {
		in := at[r.Path]
		if in == nil {
			continue
		}
		for _, i := range in.whole {
			if _, ok := turn[i]; !ok {
				turn[i], w.whole[i] = n, true
			}
		}
		in.whole = nil // once for all ranges
		layout := in.file.Layout
		if layout == nil {
			continue
		}
		if _, ok := turn[in.target]; !ok {
			turn[in.target] = n
		}
		a := ahead(in.target, in.file)
		last := layout.Find(r.End() - 1)
		for g := a.free(layout.Find(r.Offset)); g <= last; g = a.free(g) {
			w.parts = append(w.parts, chunkfile.Part{File: a.file, Group: g, Flow: a.flow})
			a.next[g]++
		}
	}
	return turn
}

// setAhead sets what is fetched ahead, and whether in a recorded order.
func (h *hydration) setAhead(all map[int]*ahead, recorded bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ahead, h.ordered = all, recorded
	if h.awaited {
		h.promoteAhead()
	}
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

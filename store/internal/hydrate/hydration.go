package hydrate

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/store/internal/chunkfile"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/opencontainers/go-digest"
)

// A hydration fetches the blobs of one table from one group of sources. There is at most one of
// each.
type hydration struct {
	table   digest.Digest
	group   string
	targets []Target
	started time.Time
	cancel  context.CancelCauseFunc
	done    chan struct{}
	err     error // valid after done is closed
	limit   chunkfile.Patience
	limiter *transfer.Limiter // or nil

	waiters int               // guarded by Engine.mu
	linger  *time.Timer       // guarded by Engine.mu; runs while there are no waiters
	ends    time.Time         // guarded by Engine.mu; when linger fires
	list    []transfer.Source // guarded by Engine.mu
	from    transfer.Sources

	mu      sync.Mutex             // guards the following
	awaited bool                   // a caller waits for the end
	wanted  map[digest.Digest]bool // files that readers wait for
	behind  *hydration             // assembles a file that this one needs; or nil
	hurry   chan struct{}          // receives after wanted has changed; not guarded
	blobs   []Progress             // by index of targets
	fetches []*blobFetch
	ahead   map[int]*ahead // by index of targets
	ordered bool           // a recorded order is followed
	rate    int64          // bytes per second
	slowest Limit
}

// key identifies a hydration.
func (h *hydration) key() string { return h.table.String() + "\n" + h.group }

// renew updates the sources: they are of the same group, but credentials may be newer. The caller
// holds Engine.mu.
func (h *hydration) renew(list []transfer.Source) {
	h.list = list
	h.from.Set(h.key(), list)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range h.fetches {
		if b != nil {
			b.eachSources(func(s *transfer.Sources) { s.Set(h.key(), list) })
		}
	}
	for _, a := range h.ahead {
		a.file.Sources.Set(h.key(), list)
	}
}

// plan sets the targets of a table.
func (h *hydration) plan(targets []Target) {
	h.targets = targets
	for _, t := range targets {
		h.blobs = append(h.blobs, Progress{Blob: t.Blob.Digest, Name: t.Name, Total: t.Blob.Size, State: StateWaiting})
	}
	h.fetches, h.hurry = make([]*blobFetch, len(targets)), make(chan struct{}, 1)
}

func (h *hydration) progress() []Progress {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := slices.Clone(h.blobs)
	for i, b := range h.fetches {
		if b == nil {
			if a := h.ahead[i]; a != nil && out[i].State == StateWaiting {
				out[i].State, out[i].Done = StateDownloading, a.file.Present()
				out[i].Registries, out[i].Mirrors = a.flow.Received()
			}
			continue
		}
		out[i].Registries, out[i].Mirrors = b.flow.Received()
		if out[i].State == StateWaiting {
			out[i].State, _ = b.state.Load().(string)
			out[i].Done = min(b.present(), out[i].Total)
		}
	}
	return out
}

// left returns the minimum number of bytes that the missing targets still need: what is neither fetched nor unpacked.
func (h *hydration) left() (n int64) {
	all := h.progress()
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, p := range all {
		if p.State == StatePresent || p.State == StateComplete {
			continue
		}
		unpacked := h.targets[i].unpacked()
		if b := h.fetches[i]; b != nil {
			unpacked -= b.unpacked.Load()
		}
		n += p.Total - p.Done + max(0, unpacked)
	}
	return n
}

// flowOf returns the work that a fetch of a target belongs to.
func (h *hydration) flowOf(i int, s *transfer.Scheduler) *transfer.Flow {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a := h.ahead[i]; a != nil {
		return a.flow
	}
	return s.NewFlow(transfer.Background).Limit(h.limiter)
}

// begun reports whether all that is staged of a target was fetched ahead.
func (h *hydration) begun(i int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := h.ahead[i]
	return a != nil && !a.old
}

// fetching records the fetch of a target.
func (h *hydration) fetching(i int, b *blobFetch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fetches[i] = b
	if h.awaited || h.wants(i) {
		b.await()
	}
}

// await gives all fetches the priority of awaited work.
func (h *hydration) await() {
	h.mu.Lock()
	h.awaited = true
	for _, b := range h.fetches {
		if b != nil {
			b.await()
		}
	}
	h.promoteAhead()
	behind := h.behind
	h.mu.Unlock()
	if behind != nil {
		behind.await()
	}
}

// awaitFile gives the fetch of a file the priority of awaited work.
func (h *hydration) awaitFile(d digest.Digest) {
	h.mu.Lock()
	if h.wanted == nil {
		h.wanted = map[digest.Digest]bool{}
	}
	h.wanted[d] = true
	select {
	case h.hurry <- struct{}{}:
	default:
	}
	for i, b := range h.fetches {
		if b != nil && h.wants(i) {
			b.await()
		}
	}
	behind := h.behind
	h.mu.Unlock()
	if behind != nil {
		behind.awaitFile(d)
	}
}

// waitBehind records the hydration that assembles a file that h needs, or nil, and gives it the priority of h.
func (h *hydration) waitBehind(other *hydration) {
	h.mu.Lock()
	h.behind = other
	awaited, wanted := h.awaited, slices.Collect(maps.Keys(h.wanted))
	h.mu.Unlock()
	if other == nil {
		return
	}
	if awaited {
		other.await()
	}
	for _, d := range wanted {
		other.awaitFile(d)
	}
}

// wantedFirst moves the targets that readers wait for to the begin of missing, and returns their number.
func (h *hydration) wantedFirst(missing []int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	var rest []int
	wanted := slices.Clone(missing)[:0]
	for _, i := range missing {
		if h.wants(i) {
			wanted = append(wanted, i)
		} else {
			rest = append(rest, i)
		}
	}
	copy(missing, append(wanted, rest...))
	return len(missing) - len(rest)
}

// wants reports whether a reader waits for content of target i; the content of archives is unknown.
// The caller holds mu.
func (h *hydration) wants(i int) bool {
	t := &h.targets[i]
	return len(h.wanted) > 0 && len(t.Files) == 0 || slices.ContainsFunc(t.digests(), func(d digest.Digest) bool { return h.wanted[d] })
}

func (h *hydration) finish(i int, state string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.blobs[i].State, h.blobs[i].Done = state, h.blobs[i].Total
}

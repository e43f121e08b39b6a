package hydrate

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/opencontainers/go-digest"
)

// A hydration brings the blobs of one table from one group of sources. There is at most one of these.
type hydration struct {
	table   digest.Digest
	group   string
	targets []Target
	cancel  context.CancelFunc
	done    chan struct{}
	err     error // valid when done is closed

	waiters int               // guarded by Engine.mu
	linger  *time.Timer       // guarded by Engine.mu; runs while nobody waits
	list    []transfer.Source // guarded by Engine.mu
	from    transfer.Sources

	mu      sync.Mutex             // guards what follows
	awaited bool                   // somebody waits for the end
	wanted  map[digest.Digest]bool // files that a reader waits for
	blobs   []Progress             // by index of targets
	fetches []*blobFetch
}

// key tells hydrations apart, and names who asks for blobs.
func (h *hydration) key() string { return h.table.String() + "\n" + h.group }

// renew takes the sources of who joined: they are of the same group, but credentials may be newer.
// Who calls it holds Engine.mu.
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
}

// plan takes the targets of a table.
func (h *hydration) plan(targets []Target) {
	h.targets = targets
	for _, t := range targets {
		h.blobs = append(h.blobs, Progress{Blob: t.Blob.Digest, Name: t.Name, Total: t.Blob.Size, State: StateWaiting})
	}
	h.fetches = make([]*blobFetch, len(targets))
}

func (h *hydration) progress() []Progress {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := slices.Clone(h.blobs)
	for i, b := range h.fetches {
		if b != nil && out[i].State == StateWaiting {
			out[i].State, _ = b.state.Load().(string)
			out[i].Done = min(b.present(), out[i].Total)
		}
	}
	return out
}

// left returns how many bytes the targets that are missing still take. What is unpacked of one counts when
// all of it is.
func (h *hydration) left() (n int64) {
	for i, p := range h.progress() {
		if p.State != StatePresent && p.State != StateComplete {
			n += p.Total - p.Done + h.targets[i].unpacked()
		}
	}
	return n
}

// started takes note of the fetch of a target.
func (h *hydration) started(i int, b *blobFetch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fetches[i] = b
	if h.awaited || h.wants(i) {
		b.await()
	}
}

// await says that somebody waits for the end.
func (h *hydration) await() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.awaited = true
	for _, b := range h.fetches {
		if b != nil {
			b.await()
		}
	}
}

// awaitFile says that somebody waits for a file, whatever it is brought with.
func (h *hydration) awaitFile(d digest.Digest) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.wanted == nil {
		h.wanted = map[digest.Digest]bool{}
	}
	h.wanted[d] = true
	for i, b := range h.fetches {
		if b != nil && h.wants(i) {
			b.await()
		}
	}
}

// wants says whether a reader waits for what target i brings; what is in an archive is not known. Who
// calls it holds mu.
func (h *hydration) wants(i int) bool {
	t := &h.targets[i]
	return len(h.wanted) > 0 && len(t.Files) == 0 || slices.ContainsFunc(t.digests(), func(d digest.Digest) bool { return h.wanted[d] })
}

func (h *hydration) settle(i int, state string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.blobs[i].State, h.blobs[i].Done = state, h.blobs[i].Total
}

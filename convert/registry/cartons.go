package registry

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/convert/carton"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Limits of cartons that are kept open.
const (
	maxCartons = 8

	// cartonIdle is how long a carton stays open that nobody uses: it can be a copy on the disk.
	cartonIdle = 10 * time.Minute

	// cartonFresh is how long what a URL names is not asked again.
	cartonFresh = time.Minute

	// maxURLs is how many URLs with queries are remembered.
	maxURLs = 256
)

// cartons are the open cartons. The zero value works.
type cartons struct {
	mu sync.Mutex
	m  map[cartonKey]*openCarton // guarded by mu

	// urls are the URLs of references whose names do not tell them: with queries, which can be signatures
	// and are recorded nowhere. Guarded by mu.
	urls map[string]string
}

// remember keeps the URL of a reference, if its name does not tell it.
func (cs *cartons) remember(ref remote.Ref) {
	if ref.Hidden() || ref.Name() == ref.String() {
		return
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.urls == nil || len(cs.urls) >= maxURLs {
		cs.urls = map[string]string{}
	}
	cs.urls[ref.Name()] = ref.URL
}

// url returns the URL of a reference. It returns errdefs.ErrNotFound if ref does not tell it, and nobody
// has told it since the daemon was started.
func (cs *cartons) url(ref remote.Ref) (string, error) {
	if !ref.Hidden() {
		return ref.URL, nil
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if u := cs.urls[ref.Name()]; u != "" {
		return u, nil
	}
	return "", fmt.Errorf("%s: the query of the URL is not kept; prefetch the carton again by its URL: %w", ref.Name(), errdefs.ErrNotFound)
}

// A cartonKey says where a carton is and who sees it.
type cartonKey struct {
	place string // a URL, or host/repository@digest
	who   callerKey
}

// An opener opens a carton.
type opener func(context.Context) (*carton.Carton, error)

// An openCarton is a carton, or is to be opened.
type openCarton struct {
	key  cartonKey
	turn chan struct{} // holds a value while someone opens it

	// Set by who opens it, and then not changed.
	carton  *carton.Carton
	fetcher transfer.Fetcher
	opened  time.Time

	converted digest.Digest // of the image; of the one conversion that runs

	users int         // guarded by cartons.mu
	gone  bool        // guarded by cartons.mu: is not in the map any more
	used  time.Time   // guarded by cartons.mu
	idle  *time.Timer // guarded by cartons.mu: closes it
}

// get returns the carton of a key, opened if it is not, does not fit or, for fresh, was opened
// too long ago. The caller releases it.
func (cs *cartons) get(ctx context.Context, key cartonKey, open opener, fits func(*carton.Carton) bool, fresh bool) (*openCarton, error) {
	for {
		c := cs.acquire(key)
		select {
		case c.turn <- struct{}{}:
		case <-ctx.Done():
			cs.release(c)
			return nil, context.Cause(ctx)
		}
		mine := c.carton == nil
		var err error
		if mine {
			if c.carton, err = open(ctx); err == nil {
				c.fetcher, c.opened = c.carton.Fetcher(), time.Now()
			}
		}
		<-c.turn
		if err == nil && (mine || fits(c.carton) && (!fresh || time.Since(c.opened) < cartonFresh)) {
			return c, nil
		}
		cs.drop(c)
		cs.release(c)
		if err != nil {
			return nil, err
		}
	}
}

// acquire returns the entry of a key, made if there is none.
func (cs *cartons) acquire(key cartonKey) *openCarton {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.m[key]
	if c == nil {
		if cs.m == nil {
			cs.m = map[cartonKey]*openCarton{}
		}
		if len(cs.m) >= maxCartons {
			cs.dropOldest()
		}
		c = &openCarton{key: key, turn: make(chan struct{}, 1)}
		cs.m[key] = c
	}
	c.users++
	c.used = time.Now()
	if c.idle != nil {
		c.idle.Stop()
	}
	return c
}

// release ends a use.
func (cs *cartons) release(c *openCarton) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.users--
	c.used = time.Now()
	switch {
	case c.users > 0:
	case c.gone:
		c.close()
	default:
		c.idle = time.AfterFunc(cartonIdle, func() { cs.dropIdle(c) })
	}
}

// drop takes an entry away. It is closed when nobody uses it.
func (cs *cartons) drop(c *openCarton) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.dropLocked(c)
}

// dropIdle is drop, unless the entry is used again.
func (cs *cartons) dropIdle(c *openCarton) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c.users == 0 {
		cs.dropLocked(c)
	}
}

// dropOldest drops the entry that was used the longest ago, of those that are not in use if
// there are any. It needs cs.mu.
func (cs *cartons) dropOldest() {
	var oldest *openCarton
	for _, c := range cs.m {
		switch {
		case oldest == nil, c.users == 0 && oldest.users > 0:
			oldest = c
		case (c.users == 0) == (oldest.users == 0) && c.used.Before(oldest.used):
			oldest = c
		}
	}
	cs.dropLocked(oldest)
}

// dropLocked needs cs.mu.
func (cs *cartons) dropLocked(c *openCarton) {
	if c.gone {
		return
	}
	c.gone = true
	delete(cs.m, c.key)
	if c.idle != nil {
		c.idle.Stop()
	}
	if c.users == 0 {
		c.close()
	}
}

// close closes the carton. Nobody uses it.
func (c *openCarton) close() {
	if c.carton != nil {
		c.carton.Close() // it was read only
	}
}

// Close closes the cartons that are open. Those in use are closed by their users.
func (h *Handler) Close() error {
	h.cartons.mu.Lock()
	defer h.cartons.mu.Unlock()
	for _, c := range h.cartons.m {
		h.cartons.dropLocked(c)
	}
	return nil
}

package registry

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Limits of open archives.
const (
	maxArchives = 8

	// archiveIdle is how long an unused archive stays open: it may be a copy on disk.
	archiveIdle = 10 * time.Minute

	// archiveFresh is how long the content of a URL is not checked again.
	archiveFresh = time.Minute

	// maxURLs limits the URLs with queries that are kept in memory.
	maxURLs = 256
)

// archives are the open archives. The zero value works.
type archives struct {
	mu sync.Mutex
	m  map[archiveKey]*openArchive // guarded by mu

	// urls are the URLs of references whose names omit the query. A query can be a signature, so it
	// is kept only in memory. Guarded by mu.
	urls map[string]remote.Ref
}

// remember keeps the URL of a reference if its name omits part of it.
func (cs *archives) remember(ref remote.Ref) {
	if ref.Hidden() || ref.Name() == ref.String() {
		return
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.urls == nil || len(cs.urls) >= maxURLs {
		cs.urls = map[string]remote.Ref{}
	}
	cs.urls[ref.Name()] = ref
}

// whole returns the format and the URL of a reference to a URL. It returns errdefs.ErrNotFound if
// ref omits the query and no request since the start of the daemon had it.
func (cs *archives) whole(r *resolve.Resolver, ref remote.Ref) (*format.Format, string, error) {
	if ref.Hidden() {
		cs.mu.Lock()
		known, ok := cs.urls[ref.Name()]
		cs.mu.Unlock()
		if !ok {
			return nil, "", fmt.Errorf("%s: the query of the URL is not kept; prefetch the model again by its URL: %w", ref.Name(), errdefs.ErrNotFound)
		}
		ref = known
	}
	f, address := r.Archive(ref)
	if f == nil {
		return nil, "", fmt.Errorf("%s: no format with this scheme is known: %w", ref.Name(), errdefs.ErrNotImplemented)
	}
	return f, address, nil
}

// An archiveKey identifies an archive and the caller that reads it.
type archiveKey struct {
	place  string // a URL, or host/repository@digest
	caller caller
}

// An opener opens an archive.
type opener func(context.Context) (format.Archive, error)

// An openArchive is an open archive, or one about to be opened.
type openArchive struct {
	key  archiveKey
	turn chan struct{} // holds a value while the archive is being opened

	// Set by the opener, constant afterwards.
	archive format.Archive
	fetcher transfer.Fetcher
	opened  time.Time

	converted atomic.Pointer[store.Image] // the last image that was made of it

	users int         // guarded by archives.mu
	gone  bool        // guarded by archives.mu: removed from the map
	used  time.Time   // guarded by archives.mu
	idle  *time.Timer // guarded by archives.mu: closes the archive
}

// get returns the archive of a key. It opens the archive if it is not open, does not have the hash
// want, unless that is empty, or, for fresh, was opened too long ago. The caller releases it.
func (cs *archives) get(ctx context.Context, key archiveKey, open opener, want digest.Digest, fresh bool) (*openArchive, error) {
	for {
		c := cs.acquire(key)
		select {
		case c.turn <- struct{}{}:
		case <-ctx.Done():
			cs.release(c)
			return nil, context.Cause(ctx)
		}
		mine := c.archive == nil
		var err error
		if mine {
			if c.archive, err = open(ctx); err == nil {
				c.fetcher, c.opened = c.archive.Fetcher(), time.Now()
			}
		}
		<-c.turn
		if err == nil && (mine || (want == "" || c.archive.Hash() == want) && (!fresh || time.Since(c.opened) < archiveFresh)) {
			return c, nil
		}
		cs.drop(c)
		cs.release(c)
		if err != nil {
			return nil, err
		}
	}
}

// acquire returns the entry of a key, which it creates if needed.
func (cs *archives) acquire(key archiveKey) *openArchive {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.m[key]
	if c == nil {
		if cs.m == nil {
			cs.m = map[archiveKey]*openArchive{}
		}
		if len(cs.m) >= maxArchives {
			cs.dropOldest()
		}
		c = &openArchive{key: key, turn: make(chan struct{}, 1)}
		cs.m[key] = c
	}
	c.users++
	c.used = time.Now()
	if c.idle != nil {
		c.idle.Stop()
	}
	return c
}

// release ends a use of an archive.
func (cs *archives) release(c *openArchive) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.users--
	c.used = time.Now()
	switch {
	case c.users > 0:
	case c.gone:
		c.close()
	default:
		c.idle = time.AfterFunc(archiveIdle, func() { cs.dropIdle(c) })
	}
}

// drop removes an entry. It is closed after its last use.
func (cs *archives) drop(c *openArchive) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.dropLocked(c)
}

// dropIdle is drop, unless the entry is in use again.
func (cs *archives) dropIdle(c *openArchive) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c.users == 0 {
		cs.dropLocked(c)
	}
}

// dropOldest drops the least recently used entry, unused ones first. It requires cs.mu.
func (cs *archives) dropOldest() {
	var oldest *openArchive
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

// dropLocked is drop with cs.mu held.
func (cs *archives) dropLocked(c *openArchive) {
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

// close closes an unused archive.
func (c *openArchive) close() {
	if c.archive != nil {
		c.archive.Close() // opened for reading
	}
}

// Close closes the open archives. Those in use are closed by their last user.
func (h *Handler) Close() error {
	h.archives.mu.Lock()
	defer h.archives.mu.Unlock()
	for _, c := range h.archives.m {
		h.archives.dropLocked(c)
	}
	return nil
}

package remote

import (
	"context"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
)

// Limits of the manifests that a Client keeps.
const (
	maxSeen      = 1024
	maxSeenSize  = 256 << 10 // of one
	maxSeenBytes = 8 << 20   // of all together
)

// seen are manifests that registries have served. Registries such as Docker Hub limit the GETs of manifests and not the
// HEADs: what a HEAD says is unchanged needs no GET. The zero value works.
type seen struct {
	mu    sync.Mutex
	m     map[Ref]*seenManifest // guarded by mu, by reference with a tag or a digest
	bytes int                   // guarded by mu: of all
}

type seenManifest struct {
	Manifest
	used time.Time
}

// get returns the manifest that ref had when it was last read, by anybody; ok is false if it was not read.
func (s *seen) get(ref Ref) (m Manifest, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.m[ref]
	if e == nil {
		return Manifest{}, false
	}
	e.used = time.Now()
	return e.Manifest, true
}

// put keeps the manifest of ref.
func (s *seen) put(ref Ref, m Manifest) {
	if len(m.Bytes) > maxSeenSize {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil {
		s.m = map[Ref]*seenManifest{}
	}
	s.remove(ref)
	s.m[ref] = &seenManifest{m, time.Now()}
	s.bytes += len(m.Bytes)
	for len(s.m) > maxSeen || s.bytes > maxSeenBytes {
		s.remove(leastRecent(s.m, func(e *seenManifest) time.Time { return e.used }))
	}
}

// remove forgets ref. The caller holds mu.
func (s *seen) remove(ref Ref) {
	if e := s.m[ref]; e != nil {
		s.bytes -= len(e.Bytes)
		delete(s.m, ref)
	}
}

// unchanged asks e by HEAD whether it has what was read of ref: that shows as well that this caller may have it. ok is
// false if a GET is needed, also for the text of an error; headless means that the answer to HEAD says nothing. The
// error is that of a host that does not answer now.
func (r *Repository) unchanged(ctx context.Context, e *endpoint, q request, ref Ref) (m Manifest, ok, headless bool, err error) {
	if m, ok = r.client.seen.get(ref); !ok || e.headless.Load() || e.dialect {
		return Manifest{}, false, false, nil
	}
	q.head = true
	resp, err := r.do(ctx, e, q)
	switch {
	case ctx.Err() != nil, errdefs.IsUnavailable(err) && !isQuota(err):
		return Manifest{}, false, false, err
	case err != nil:
		return Manifest{}, false, !isQuota(err), nil
	}
	resp.Body.Close()
	d, err := verify.ParseDigest(resp.Header.Get("Docker-Content-Digest"))
	if d != m.Digest {
		return Manifest{}, false, err != nil, nil
	}
	m.Unconfirmed, err = r.unconfirmed(ctx, e, d)
	return m, err == nil, false, err
}

package registry

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// holds are the digests that tags have for a while, by reference. A later one replaces earlier ones until it ends.
type holds struct {
	mu  sync.Mutex // guards all
	all map[string][]*digest.Digest
}

// Hold has the tag of ref point to a digest of its repository, whatever the registry says, until release: for every
// request, and for Convert and ConvertAs. The image is recorded by the tag. Access is checked as for the digest.
func (h *Handler) Hold(ref remote.Ref, d digest.Digest) (release func()) {
	h.holds.mu.Lock()
	defer h.holds.mu.Unlock()
	if h.holds.all == nil {
		h.holds.all = map[string][]*digest.Digest{}
	}
	key, mine := ref.Recorded(), &d
	h.holds.all[key] = append(h.holds.all[key], mine)
	return func() {
		h.holds.mu.Lock()
		defer h.holds.mu.Unlock()
		rest := slices.DeleteFunc(h.holds.all[key], func(d *digest.Digest) bool { return d == mine })
		if h.holds.all[key] = rest; len(rest) == 0 {
			delete(h.holds.all, key)
		}
	}
}

// of returns the digest that a tag has, or an empty one.
func (l *holds) of(ref remote.Ref) digest.Digest {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.all[ref.Recorded()]
	if len(all) == 0 {
		return ""
	}
	return *all[len(all)-1]
}

// Version returns the digest that a tag has in its registry, for Hold, with the credentials of a caller, or of the node
// if they are nil. It returns errdefs.ErrNotImplemented if the digest alone does not say what the tag points to: that
// of an archive at a URL, of a variant, and of a model that was imported and whose registry does not answer. Otherwise
// it returns the errors of remote.Repository.Resolve.
func (h *Handler) Version(ctx context.Context, ref remote.Ref, creds *remote.Credentials) (digest.Digest, error) {
	ctx, done, err := h.room(ctx, &h.requests, ref.Host)
	if err != nil {
		return "", err
	}
	defer done()
	as := caller{node: true}
	if creds != nil {
		as = with(*creds)
	}
	unversioned := fmt.Errorf("%s has no digest by which its registry has it: %w", ref, errdefs.ErrNotImplemented)
	if f, _ := h.Archive(ref); f != nil {
		return "", unversioned
	}
	o, err := h.resolve(ctx, ref, as)
	if _, ok := h.imported(ctx, ref, as, err); ok {
		return "", unversioned
	}
	if err != nil {
		return "", err
	}
	if o.Format != mediatype.FormatImage && o.HasVariants() {
		return "", unversioned
	}
	return o.Served.Digest, nil
}

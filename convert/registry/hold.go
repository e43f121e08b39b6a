package registry

import (
	"context"
	"slices"
	"sync"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
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

// held returns a reference with the digest that its tag has at the moment, and whether it has one.
func (h *Handler) held(ref remote.Ref) (remote.Ref, bool) {
	if ref.Digest != "" || ref.URL != "" {
		return ref, false
	}
	h.holds.mu.Lock()
	defer h.holds.mu.Unlock()
	all := h.holds.all[ref.Recorded()]
	if len(all) == 0 {
		return ref, false
	}
	ref.Digest = *all[len(all)-1]
	return ref, true
}

// A Version is what a tag points to, for Hold.
type Version struct {
	Digest digest.Digest // of the manifest or index in the registry

	// Imported is set if the registry does not answer, and the tag is that of a model that was imported.
	Imported bool
}

// Version asks the registry of a tag what it points to, with the credentials of a caller, or of the node if they are
// nil. For an archive at a URL, and for one of several variants, no digest says so, and it is empty. It returns the
// errors of remote.Repository.Resolve.
func (h *Handler) Version(ctx context.Context, ref remote.Ref, creds *remote.Credentials) (v Version, err error) {
	ctx, done, err := h.room(ctx, &h.requests, ref.Host)
	if err != nil {
		return v, err
	}
	defer done()
	as := caller{node: true}
	if creds != nil {
		as = with(*creds)
	}
	if f, _ := h.Archive(ref); f != nil {
		return v, nil
	}
	o, err := h.resolve(ctx, ref, as)
	if _, ok := h.imported(ctx, ref, as, err); ok {
		v.Imported = true
		return v, nil
	}
	if err == nil && (o.Format == mediatype.FormatImage || !o.HasVariants()) {
		v.Digest = o.Served.Digest
	}
	return v, err
}

package admin

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"golang.org/x/time/rate"
)

// Limits of requests for Resolved, of one user.
const (
	resolveRate  = 20 // a second
	resolveBurst = 100
)

// maxResolvers is the number of users whose requests are counted.
const maxResolvers = 1024

// A perUser counts the requests of users. The zero value works.
type perUser struct {
	mu sync.Mutex
	of map[uint32]*rate.Limiter // guarded by mu
}

// allow counts a request, and reports whether the user may send it.
func (p *perUser) allow(uid uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[uid] == nil {
		if p.of == nil || len(p.of) >= maxResolvers {
			p.of = map[uint32]*rate.Limiter{}
		}
		p.of[uid] = rate.NewLimiter(resolveRate, resolveBurst)
	}
	return p.of[uid].Allow()
}

// maxName limits the name in a request of ResolveRoutes, in bytes.
const maxName = 1 << 10

// ResolveRoutes returns the handler for users who are not root. It changes and downloads nothing, and shows only
// models that everybody can read in their registry. user returns the user who sent a request.
func (h *Handler) ResolveRoutes(user func(context.Context) uint32) http.Handler {
	var limit perUser
	mux := http.NewServeMux()
	mux.Handle("GET /v1/resolve", answer(func(r *http.Request) (any, error) {
		if !limit.allow(user(r.Context())) {
			return nil, fmt.Errorf("too many requests; try again in a second: %w", errdefs.ErrUnavailable)
		}
		s := r.URL.Query().Get("name")
		if len(s) > maxName {
			return nil, fmt.Errorf("the name has more than %d bytes: %w", maxName, errdefs.ErrInvalidArgument)
		}
		name, err := modelname.Parse(s)
		if err != nil {
			return nil, err
		}
		if !name.IsRef() {
			return nil, fmt.Errorf("%s is a digest; name the model by a reference: %w", name, errdefs.ErrInvalidArgument)
		}
		return h.resolved(r.Context(), name)
	}))
	return mux
}

// resolved returns where a model is mounted. What the caller may not see is not found, as what does not exist.
func (h *Handler) resolved(ctx context.Context, name modelname.Name) (wire.Resolved, error) {
	none := fmt.Errorf("%s is not mounted on this machine for everybody; root mounts it with: ballast mount %[1]s DIR: %w", name.Ref, errdefs.ErrNotFound)
	public := slices.ContainsFunc(h.Store.Catalog.ImagesByRef(name.Ref.Recorded()), func(im store.Image) bool {
		return !slices.Contains(im.PrivateNames, name.Ref.Name())
	})
	if !public {
		return wire.Resolved{}, none
	}
	im, err := h.findOne(name)
	if err != nil || slices.Contains(im.PrivateNames, name.Ref.Name()) {
		return wire.Resolved{}, none
	}
	mounts, err := h.Mounts.List(ctx)
	if err != nil {
		return wire.Resolved{}, none
	}
	at := slices.IndexFunc(mounts, func(m wire.Mount) bool {
		// By another name it may not be for everybody, and its digest does not say that it is.
		by, err := modelname.Parse(m.Name)
		return err == nil && by.IsRef() && by.Ref.Recorded() == name.Ref.Recorded() && m.Mounted && m.Table == im.Table && !strings.HasPrefix(m.Dir, h.Models+"/")
	})
	if at < 0 {
		return wire.Resolved{}, none
	}
	out := wire.Resolved{Ref: name.Ref.Recorded(), Digest: im.Manifest, Origin: im.Origin.Digest, Format: im.Origin.Format, Path: filepath.Join(mounts[at].Dir, im.Origin.Prefix), Files: []wire.ResolvedFile{}}
	files, err := h.Store.Views.Files(im.Table)
	out.Complete = err == nil
	if err != nil {
		t, err := h.Store.Table(im.Table)
		if err != nil {
			return wire.Resolved{}, none
		}
		files = t.Seen()
	}
	for _, f := range files {
		if f.Type == filetable.TypeReg {
			out.Files = append(out.Files, wire.ResolvedFile{Path: f.Path, Size: f.Size, Digest: f.Digest})
		}
	}
	return out, nil
}

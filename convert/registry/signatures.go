package registry

import (
	"context"
	"errors"
	"fmt"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// admit returns a *signature.Refusal if the signatures of an image are not as a rule for ref wants them.
// Of an index it is the model for this machine that counts, and a signature of either will do.
func (h *Handler) admit(ctx context.Context, ref remote.Ref, im store.Image, who func(name) []viewer) error {
	if h.Signatures == nil {
		return nil
	}
	s, err := h.subject(ctx, ref, im, who)
	if err != nil {
		return err
	}
	_, err = h.Signatures.Allow(ctx, s)
	return err
}

// admitOther is admit for what passes unchanged: an image that was converted ahead of time, or what is
// no model.
func (h *Handler) admitOther(ctx context.Context, o *origin) error {
	if h.Signatures == nil {
		return nil
	}
	if o.ahead() {
		im, err := h.Store.Image(ctx, o.served.Digest)
		if err == nil {
			return h.admit(ctx, o.ref, im, h.givers)
		}
		if !errdefs.IsNotFound(err) {
			return err
		}
	}
	_, err := h.Signatures.Allow(ctx, signature.Subject{
		Names: []string{o.ref.Name()}, Manifests: []digest.Digest{o.served.Digest}, Repositories: h.signers([]remote.Ref{o.ref}, h.givers),
	})
	return err
}

// subject returns what is checked of an image that is pulled by ref.
func (h *Handler) subject(ctx context.Context, ref remote.Ref, im store.Image, who func(name) []viewer) (signature.Subject, error) {
	s := signature.Subject{
		Names: []string{ref.Name()}, Manifests: []digest.Digest{im.Origin.Digest}, Image: im, Repositories: h.signers([]remote.Ref{ref}, who),
	}
	if im.Table != "" {
		return s, nil
	}
	model, err := h.forHere(ctx, im)
	switch {
	case errdefs.IsNotFound(err): // containerd pulls none of its models
		s.Image = store.Image{}
		return s, nil
	case err != nil:
		return s, err
	}
	s.Image, s.Manifests = model, append(s.Manifests, model.Origin.Digest)
	return s, nil
}

// signers returns the repositories that can have signatures of what refs name. A carton at a URL
// has those alone that are in it.
func (h *Handler) signers(refs []remote.Ref, who func(name) []viewer) (repos []*remote.Repository) {
	var named []remote.Ref
	for _, ref := range refs {
		if _, ok := h.cartonURL(ref); !ok && ref.URL == "" {
			named = append(named, ref)
		}
	}
	for _, s := range h.sites(named, who) {
		repos = append(repos, s.repo)
	}
	return repos
}

// maxManifests is how many images of one table are asked signatures for.
const maxManifests = 4

// A Candidate is a model that is about to be shown.
type Candidate struct {
	Table digest.Digest

	// Names are those that it was pulled by (remote.Ref.Name); none if nobody knows.
	Names []string

	// Complete says that all of its files are there.
	Complete bool

	// AsNode looks for signatures with the credentials of the node, instead of those that callers gave.
	AsNode bool
}

// Admit checks a model. It returns errdefs.ErrFailedPrecondition if a rule does not let it pass, and
// otherwise whether it has to be asked again when the model is complete.
//
// What a table says of its origin is not believed: manifests count whose table this was found to be here.
func (h *Handler) Admit(ctx context.Context, c Candidate) (pending bool, err error) {
	if h.Signatures == nil {
		return false, nil
	}
	images, err := h.Store.ImagesByTable(ctx, c.Table)
	if err != nil {
		return false, err
	}
	s := signature.Subject{Names: c.Names, Image: store.Image{Table: c.Table}, Complete: c.Complete}
	for i, im := range images {
		if i == maxManifests {
			break
		}
		s.Image = im
		s.Manifests = append(s.Manifests, im.Origin.Digest)
	}
	var refs []remote.Ref
	for _, n := range c.Names {
		if r, err := refsOf(s.Image, n); err == nil {
			refs = append(refs, r...)
		}
	}
	who := h.givers
	if c.AsNode {
		who = h.asNode(s.Image)
	}
	s.Repositories = h.signers(refs, who)
	pending, err = h.Signatures.Allow(ctx, s)
	if _, refused := errors.AsType[*signature.Refusal](err); refused && len(images) == 0 {
		err = fmt.Errorf("%w (signatures of its manifest were not looked for: it was not resolved through the facade; pull it by a tag)", err)
	}
	return pending, err
}

// Checked checks what a reference names by the rules for it, again if it was checked before, and returns
// what they came to: none if no rule is for it.
func (h *Handler) Checked(ctx context.Context, ref remote.Ref) (store.Image, []signature.Result, error) {
	im, err := h.convertRef(ctx, ref)
	if err != nil {
		return store.Image{}, nil, err
	}
	s, err := h.subject(ctx, ref, im, h.asNode(im))
	if err != nil || h.Signatures == nil {
		return s.Image, nil, err
	}
	_, err = h.Store.Files(ctx, s.Image.Table)
	s.Complete, s.Again = err == nil, true
	return s.Image, h.Signatures.Check(ctx, s), nil
}

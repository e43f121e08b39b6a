package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// admit returns a *signature.Refusal if the signatures of an image are not as a rule for ref wants them, and
// otherwise the table that has to be admitted again when its model is complete; empty: none.
func (h *Handler) admit(ctx context.Context, ref remote.Ref, im store.Image, who func(name) []viewer) (pending digest.Digest, err error) {
	if h.Signatures == nil {
		return "", nil
	}
	_, all, err := h.subjects(ctx, ref, im, who)
	for _, s := range all {
		again, err := h.Signatures.Allow(ctx, s)
		if err != nil {
			return "", err
		}
		if again {
			pending = s.Image.Table
		}
	}
	return pending, err
}

// admitOther is admit for what passes unchanged to containerd: an image that was converted ahead of time, or
// what is no model.
func (h *Handler) admitOther(ctx context.Context, o *origin) error {
	if h.Signatures == nil {
		return nil
	}
	if o.Ahead() {
		im, err := h.Store.Image(ctx, o.Served.Digest)
		if err == nil {
			pending, err := h.admit(ctx, o.Ref, im, h.givers)
			return cmp.Or(err, h.notShown(ctx, pending))
		}
		if !errdefs.IsNotFound(err) {
			return err
		}
	}
	_, err := h.Signatures.Allow(ctx, signature.Subject{
		Names: []string{o.Ref.Name()}, Manifests: []digest.Digest{o.Served.Digest}, Repositories: h.signers([]remote.Ref{o.Ref}, h.givers),
	})
	return err
}

// notShown returns errdefs.ErrFailedPrecondition for a table that has to be admitted again and is shown already, by
// another name: containerd has its snapshot, and applies nothing that would be asked for again.
func (h *Handler) notShown(ctx context.Context, pending digest.Digest) error {
	if pending == "" || h.Shown == nil {
		return nil
	}
	shown, err := h.Shown(ctx, pending)
	if err != nil || !shown {
		return err
	}
	return fmt.Errorf("the model is in use by another name, and whether its files are signed is known when it is complete; pull it again then: %w", errdefs.ErrFailedPrecondition)
}

// subjects returns what is checked of an image that is pulled by ref, which all has to be as the rules want it:
// its model, and the manifest alone if that names more. Of an index it is the model for this machine that
// counts, and a signature of either will do. It returns that model as well.
func (h *Handler) subjects(ctx context.Context, ref remote.Ref, im store.Image, who func(name) []viewer) (model store.Image, all []signature.Subject, err error) {
	s := signature.Subject{Names: []string{ref.Name()}, Manifests: signable(im), Repositories: h.signers([]remote.Ref{ref}, who)}
	only, err := h.onlyModels(ctx, im)
	if err != nil {
		return store.Image{}, nil, err
	}
	model = im
	if im.Table == "" {
		model, err = h.forHere(ctx, im)
		if err != nil && !errdefs.IsNotFound(err) { // containerd pulls none of its models
			return store.Image{}, nil, err
		}
	}
	if !only || model.Table == "" {
		all = append(all, s)
	}
	if model.Table == "" {
		return model, all, nil
	}
	s.Image = model
	if model.Origin.Digest != im.Origin.Digest {
		s.Manifests = append(s.Manifests, signable(model)...)
	}
	return model, append(all, s), nil
}

// signable returns the manifests a signature of which counts for an image: its origin, and itself, as it follows
// from the origin.
func signable(im store.Image) []digest.Digest {
	return slices.Compact([]digest.Digest{im.Origin.Digest, im.Manifest})
}

// onlyModels says whether an image has nothing beside its model, or an index nothing for this machine beside
// models that were converted here. What made it so does not sign the rest.
func (h *Handler) onlyModels(ctx context.Context, im store.Image) (bool, error) {
	if im.Table != "" && !madeAhead(im) {
		return true, nil
	}
	p, err := h.manifest(ctx, im)
	if err != nil {
		return false, err
	}
	m, err := convert.ParseManifest(p)
	if err != nil {
		return false, err
	}
	for _, d := range m.Manifests {
		if p := d.Platform; p != nil && p.OS != "" && p.OS != "linux" {
			continue
		}
		child, err := h.image(ctx, d.Digest)
		if errdefs.IsNotFound(err) || err == nil && madeAhead(child) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return !slices.ContainsFunc(m.Layers, func(d convert.Descriptor) bool { return !resolve.IsTable(d) && d.MediaType != mediatype.BlobLayer }), nil
}

// signers returns the repositories that can have signatures of what refs name. A carton at a URL
// has those alone that are in it.
func (h *Handler) signers(refs []remote.Ref, who func(name) []viewer) (repos []*remote.Repository) {
	var named []remote.Ref
	for _, ref := range refs {
		if _, ok := h.CartonURL(ref); !ok && ref.URL == "" {
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
		s.Manifests = append(s.Manifests, signable(im)...)
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
	model, all, err := h.subjects(ctx, ref, im, h.asNode(im))
	if err != nil || h.Signatures == nil {
		return model, nil, err
	}
	var results []signature.Result
	for _, s := range all {
		_, err = h.Store.Files(ctx, s.Image.Table)
		s.Complete, s.Again = err == nil, true
		results = append(results, h.Signatures.Check(ctx, s)...)
	}
	return model, results, nil
}

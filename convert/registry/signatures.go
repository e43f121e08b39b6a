package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// admit returns a *signature.Refusal if a rule for ref refuses an image, and otherwise the table that must be checked
// again when its model is complete; empty means none. Signatures of manifests count as well: those from which the
// image follows.
func (h *Handler) admit(ctx context.Context, ref remote.Ref, im store.Image, viewers func(name) []viewer, manifests ...digest.Digest) (pending digest.Digest, err error) {
	if h.Signatures == nil {
		return "", nil
	}
	_, all, err := h.subjects(ctx, ref, im, viewers)
	for _, s := range all {
		s.Manifests = append(s.Manifests, manifests...)
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

// admitBytes is admit for a manifest that passes unchanged: only a signature of the manifest covers its bytes.
func (h *Handler) admitBytes(ctx context.Context, o *origin) error {
	if h.Signatures == nil {
		return nil
	}
	_, err := h.Signatures.Allow(ctx, h.bytesOf(o))
	return err
}

// signedBytes reports whether a rule has found a signature of the manifest of o.
func (h *Handler) signedBytes(ctx context.Context, o *origin) bool {
	return h.Signatures != nil && slices.ContainsFunc(h.Signatures.Check(ctx, h.bytesOf(o)), func(r signature.Result) bool {
		return r.State == signature.Accepted && len(r.Signers) > 0
	})
}

func (h *Handler) bytesOf(o *origin) signature.Subject {
	return signature.Subject{
		Names: []string{o.Ref.Name()}, Manifests: []digest.Digest{o.Served.Digest}, Repositories: h.signers([]remote.Ref{o.Ref}, h.givers),
	}
}

// notShown returns errdefs.ErrFailedPrecondition for a pending table that is already shown by
// another name, and not complete: containerd has its snapshot and applies nothing, so it would not
// be checked again.
func (h *Handler) notShown(ctx context.Context, pending digest.Digest) error {
	if pending == "" || h.ShownEarly == nil {
		return nil
	}
	shown, err := h.ShownEarly(ctx, pending)
	if err != nil || !shown {
		return err
	}
	return fmt.Errorf("the model is in use under another name and its signature can be checked only when it is complete; pull it again then: %w", errdefs.ErrFailedPrecondition)
}

// subjects returns what must pass the rules for an image pulled by ref: its model, and the manifest
// alone if that has more than the model. Of an index only the model for this machine counts, and a
// signature of either is enough. It also returns that model.
func (h *Handler) subjects(ctx context.Context, ref remote.Ref, im store.Image, viewers func(name) []viewer) (model store.Image, all []signature.Subject, err error) {
	s := signature.Subject{Names: []string{ref.Name()}, Manifests: signable(im), Repositories: h.signers([]remote.Ref{ref}, viewers)}
	only, err := h.onlyModels(ctx, im)
	if err != nil {
		return store.Image{}, nil, err
	}
	model = im
	if im.Table == "" {
		model, err = h.ForHere(im)
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
	s.FilesOnly = filesOnly(im, model)
	return model, append(all, s), nil
}

// signable returns the manifests whose signatures count for an image: its origin, and the image
// itself, which follows from the origin.
func signable(im store.Image) []digest.Digest {
	return slices.Compact([]digest.Digest{im.Origin.Digest, im.Manifest})
}

// filesOnly returns the manifests that name the archive of a model, or an index of it, by a digest that nothing is
// compared with: their signatures do not cover its files.
func filesOnly(im, model store.Image) []digest.Digest {
	if !hasMembers(model) {
		return nil
	}
	if im.Ahead { // an index that was pushed names tables
		return []digest.Digest{model.Origin.Digest}
	}
	return []digest.Digest{im.Origin.Digest, model.Origin.Digest}
}

// onlyModels reports whether an image has nothing but its model, or an index nothing for Linux but
// such images. A signature of the model does not cover other content.
func (h *Handler) onlyModels(ctx context.Context, im store.Image) (bool, error) {
	if im.Table != "" && !im.Ahead {
		return true, nil
	}
	p, err := h.manifest(im)
	if err != nil {
		return false, err
	}
	m, err := convert.ParseManifest(p)
	if err != nil {
		return false, err
	}
	for _, d := range m.Manifests {
		if resolve.OtherSystem(d) {
			continue
		}
		child, err := h.image(d.Digest)
		if errdefs.IsNotFound(err) {
			return false, nil
		}
		only := false
		if err == nil && child.Table != "" {
			only, err = h.onlyModels(ctx, child)
		}
		if err != nil || !only {
			return false, err
		}
	}
	return !resolve.Extends(m), nil
}

// signers returns the repositories that can have signatures for refs. An archive at a URL can only
// have its own.
func (h *Handler) signers(refs []remote.Ref, viewers func(name) []viewer) (repos []*remote.Repository) {
	var named []remote.Ref
	for _, ref := range refs {
		if f, _ := h.Archive(ref); f == nil && ref.URL == "" {
			named = append(named, ref)
		}
	}
	for _, s := range h.sites(named, viewers) {
		repos = append(repos, s.repo)
	}
	return repos
}

// maxManifests limits the images of a table that are checked.
const maxManifests = 4

// A Candidate is a model that is about to be shown.
type Candidate struct {
	Table digest.Digest

	// Names are the names that it was pulled by (remote.Ref.Name); empty if unknown.
	Names []string

	// Complete is true if all of its files are complete.
	Complete bool

	// AsNode looks for signatures with the credentials of the node instead of those of callers.
	AsNode bool
}

// Admit checks a model. It returns errdefs.ErrFailedPrecondition if a rule refuses it, and
// otherwise whether it must be checked again when the model is complete.
//
// The origin in a table is not trusted: only manifests that were found here to have this table
// count.
func (h *Handler) Admit(ctx context.Context, c Candidate) (pending bool, err error) {
	if h.Signatures == nil {
		return false, nil
	}
	images := h.Store.Catalog.ImagesByTable(c.Table)
	if len(images) == 0 {
		pending, err = h.admitImage(ctx, c, store.Image{Table: c.Table})
		if _, refused := errors.AsType[*signature.Refusal](err); refused {
			err = fmt.Errorf("%w (signatures of its manifest were not checked, because it was not resolved through the facade; pull it by a tag)", err)
		}
		return pending, err
	}
	// Strangers can make images with the table of others: those of the names count, if there are any.
	slices.SortStableFunc(images, func(a, b store.Image) int { return cmp.Compare(c.far(a), c.far(b)) })
	for i, im := range images {
		if i == maxManifests || c.far(im) > c.far(images[0]) {
			break
		}
		if pending, err = h.admitImage(ctx, c, im); err == nil {
			return pending, nil
		}
	}
	return false, err
}

// far returns 0 for an image that was resolved from one of the names of c, otherwise 1.
func (c *Candidate) far(im store.Image) int {
	if slices.ContainsFunc(Names(im), func(n string) bool { return slices.Contains(c.Names, n) }) {
		return 0
	}
	return 1
}

// admitImage is Admit for one of the images that a candidate can be of.
func (h *Handler) admitImage(ctx context.Context, c Candidate, im store.Image) (pending bool, err error) {
	s := signature.Subject{Names: c.Names, FilesOnly: filesOnly(im, im), Image: im, Complete: c.Complete}
	if im.Manifest != "" {
		s.Manifests = signable(im)
	}
	var refs []remote.Ref
	for _, n := range c.Names {
		if r, err := refsOf(im, n); err == nil {
			refs = append(refs, r...)
		}
	}
	viewers := h.givers
	if c.AsNode {
		viewers = h.asNode(im)
	}
	s.Repositories = h.signers(refs, viewers)
	return h.Signatures.Allow(ctx, s)
}

// Checked checks a reference by its rules, even if it was checked before, and returns the results. If no rule
// applies, it returns what signature.Checker.Found does.
func (h *Handler) Checked(ctx context.Context, ref remote.Ref) (model store.Image, results []signature.Result, found []string, err error) {
	im, err := h.convertRef(ctx, ref)
	if err != nil {
		return store.Image{}, nil, nil, err
	}
	model, all, err := h.subjects(ctx, ref, im, h.asNode(im))
	if err != nil {
		return model, nil, nil, err
	}
	c := cmp.Or(h.Signatures, &signature.Checker{Store: h.Store})
	for i, s := range all {
		_, err = h.Store.Views.Files(s.Image.Table)
		all[i].Complete, all[i].Again = err == nil, true
		results = append(results, c.Check(ctx, all[i])...)
	}
	for _, s := range all {
		if len(results) > 0 {
			break
		}
		some, err := c.Found(ctx, s)
		if err != nil {
			return model, nil, nil, err
		}
		found = append(found, some...)
	}
	slices.Sort(found) // a model and its index have some in common
	return model, results, slices.Compact(found), nil
}

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/ollama/localstore"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// refOf returns the reference by which a model of an Ollama is pulled from its registry.
func refOf(n localstore.Name) (remote.Ref, error) {
	ref, err := remote.NewRef(n.Host, n.Namespace+"/"+n.Model, n.Tag)
	if err == nil {
		ref, err = resolve.ParseRef(ref.String())
	}
	if err != nil {
		return remote.Ref{}, fmt.Errorf("no reference of containerd can name it: %w", err)
	}
	return ref, nil
}

// importModels lists the models of the Ollama in a directory.
func (d *Daemon) importModels(_ context.Context, dir string) ([]admin.LocalModel, error) {
	s, err := localstore.Open(dir)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	models, err := s.Models()
	if err != nil {
		return nil, err
	}
	out := []admin.LocalModel{}
	for _, m := range models {
		l := admin.LocalModel{Name: m.Name.Short()}
		if ref, err := refOf(m.Name); err == nil {
			l.Ref = ref.String()
		}
		out = append(out, l)
	}
	return out, nil
}

// A localModel is a model of an Ollama that is open.
type localModel struct {
	*localstore.Store
	artifact *localstore.Artifact
	ref      remote.Ref
}

// openLocal opens the model that a request names. The caller closes it.
func openLocal(r admin.ImportRequest) (*localModel, error) {
	s, err := localstore.Open(r.Dir)
	if err != nil {
		return nil, err
	}
	m := &localModel{Store: s}
	if m.artifact, err = s.Artifact(r.Model); err == nil {
		m.ref, err = refOf(m.artifact.Name())
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return m, nil
}

// Fetch is that of the store of Ollama. What a user of this machine has is nobody else's, even by a
// name of the public library: models that are made here have such names too.
func (m *localModel) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	body, start, err := m.Store.Fetch(ctx, d, size, off, n)
	if err != nil {
		return nil, 0, err
	}
	return transfer.NewBody(ctx, body, true), start, nil
}

// explain says what can be done about an error.
func (m *localModel) explain(err error) error {
	if err == nil || errors.Is(err, convert.ErrNotModel) || errdefs.IsCanceled(err) {
		return err
	}
	return m.Explain(m.artifact.Name(), err)
}

// importModel takes over a model, or joins who does.
func (d *Daemon) importModel(ctx context.Context, r admin.ImportRequest, event func([]admin.Event) error) (store.Image, store.Linked, error) {
	m, err := openLocal(r)
	if err != nil {
		return store.Image{}, store.Linked{}, err
	}
	ref := m.ref.String()
	if err := m.Close(); err != nil {
		return store.Image{}, store.Linked{}, err
	}
	p := admin.PrefetchRequest{Ref: ref, NoPin: r.NoPin, TTL: r.TTL}
	pl, err := d.pulls.join(ctx, byImport, p, func(ctx context.Context, pl *pull) (store.Image, error) { return d.takeOver(ctx, pl, r) })
	if err != nil {
		return store.Image{}, store.Linked{}, err
	}
	im, err := d.pulls.follow(ctx, pl, event)
	if err != nil {
		return store.Image{}, store.Linked{}, err
	}
	return im, pl.linked, nil // nobody changes it after the end
}

// takeOver is the work of an import: it converts, shares or copies, and pins.
func (d *Daemon) takeOver(ctx context.Context, pl *pull, r admin.ImportRequest) (_ store.Image, err error) {
	m, err := openLocal(r)
	if err != nil {
		return store.Image{}, err
	}
	defer func() { err = errors.Join(m.explain(err), m.Close()) }()
	// Everybody may have what is in the public library. Of other names only the registry knows.
	im, err := d.facade.ConvertLocal(ctx, m.ref, m.artifact, !m.artifact.Name().Official())
	if err != nil {
		return store.Image{}, err
	}
	rates := map[digest.Digest]*rate{}
	shared := map[digest.Digest]string{}
	pl.linked, err = d.store.Link(ctx, im.Table, store.LinkOptions{Open: m.OpenBlob, Private: m.ref.Name(), Progress: func(ps []store.Progress) {
		for _, s := range ps {
			shared[s.Blob] = s.State
		}
		d.pulls.progress(pl, ps, rates)
	}})
	if err != nil {
		return store.Image{}, err
	}
	err = d.store.Hydrate(ctx, im.Table, store.HydrateOptions{Sources: []transfer.Source{{Name: m.ref.Name(), Who: "import", Fetcher: m}}, Progress: func(ps []store.Progress) {
		for i, s := range ps {
			if s.State == "present" && shared[s.Blob] == "complete" {
				ps[i].State = shared[s.Blob] // that it was there when Hydrate came is no news
			}
		}
		d.pulls.progress(pl, ps, rates)
	}})
	if err != nil {
		return store.Image{}, err
	}
	if _, err := d.facade.Admit(ctx, registry.Candidate{Table: im.Table, Names: []string{m.ref.Name()}, Complete: true, AsNode: true}); err != nil {
		return store.Image{}, err
	}
	d.log.Info("model taken over from Ollama", "ref", pl.ref, "dir", m.Dir(), "reflinked", pl.linked.Cloned, "linked", pl.linked.Hard)
	return im, d.pulls.pinFor(ctx, pl, im, m.ref)
}

// importPlan says what an import would do. It leaves nothing in the store.
func (d *Daemon) importPlan(ctx context.Context, r admin.ImportRequest) (_ admin.ImportPlan, err error) {
	m, err := openLocal(r)
	if err != nil {
		return admin.ImportPlan{}, err
	}
	defer func() { err = errors.Join(m.explain(err), m.Close()) }()
	model, manifest, err := d.facade.BuildLocal(ctx, m.ref, m.artifact)
	if err != nil {
		return admin.ImportPlan{}, err
	}
	plan := admin.ImportPlan{
		LocalModel: admin.LocalModel{Name: m.artifact.Name().Short(), Ref: m.ref.String()},
		Manifest:   manifest, Origin: model.Table.Origin, Blobs: []admin.ImportBlob{},
	}
	for _, b := range model.Table.Blobs {
		l := admin.ImportBlob{Digest: b.Digest, Size: b.Size, File: fileOf(&model.Table, b.Digest)}
		if l.State, err = d.way(m, b); err != nil {
			return admin.ImportPlan{}, err
		}
		plan.Size += b.Size
		plan.Blobs = append(plan.Blobs, l)
	}
	return plan, nil
}

// way says how a blob would be taken over.
func (d *Daemon) way(m *localModel, b filetable.Blob) (string, error) {
	if o, err := d.store.OpenObject(b.Digest); err == nil {
		return "present", o.Close()
	}
	f, err := m.OpenBlob(b.Digest)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if b.Archive != filetable.ArchiveNone || b.Codec != filetable.CodecNone {
		return store.LinkNone, nil
	}
	return d.store.LinkWay(f)
}

// fileOf returns the path of the first file that has bytes of a blob.
func fileOf(t *filetable.Table, d digest.Digest) string {
	for _, f := range t.Files {
		if f.Source == nil {
			continue
		}
		for _, src := range append([]filetable.Source{*f.Source}, f.Source.Parts...) {
			if src.Blob == d {
				return f.Path
			}
		}
	}
	return ""
}

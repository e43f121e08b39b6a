package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/ollama/localstore"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// refOf returns the reference of a model of an Ollama store in its registry.
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

// ImportModels lists the models of the Ollama store in a directory.
func (js *Jobs) ImportModels(_ context.Context, dir string) ([]api.LocalModel, error) {
	s, err := localstore.Open(dir)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	models, err := s.Models()
	if err != nil {
		return nil, err
	}
	out := []api.LocalModel{}
	for _, m := range models {
		l := api.LocalModel{Name: m.Name.Short()}
		if ref, err := refOf(m.Name); err == nil {
			l.Ref = ref.String()
		}
		out = append(out, l)
	}
	return out, nil
}

// A localModel is an open model of an Ollama store.
type localModel struct {
	*localstore.Store
	artifact *localstore.Artifact
	ref      remote.Ref
}

// openLocal opens the model named in a request. The caller closes it.
func openLocal(r api.ImportRequest) (*localModel, error) {
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

// Fetch reads a blob from the Ollama store. The bytes are private: models that a user of this
// machine created can also have names of the public library.
func (m *localModel) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	body, start, err := m.Store.Fetch(ctx, d, size, off, n)
	if err != nil {
		return nil, 0, err
	}
	return transfer.NewBody(ctx, body, true), start, nil
}

// explain adds advice to an error.
func (m *localModel) explain(err error) error {
	if err == nil || errors.Is(err, convert.ErrNotModel) || errdefs.IsCanceled(err) {
		return err
	}
	return m.Explain(m.artifact.Name(), err)
}

// Import imports a model of an Ollama on this machine, or joins the job that does: see Prefetch.
func (js *Jobs) Import(ctx context.Context, r api.ImportRequest, event func([]api.Event) error) (store.Image, store.Linked, error) {
	m, err := openLocal(r)
	if err != nil {
		return store.Image{}, store.Linked{}, err
	}
	if err := m.Close(); err != nil {
		return store.Image{}, store.Linked{}, err
	}
	j, err := js.join(ctx, api.KindImport, m.ref.String(), pinFor(r.NoPin, r.TTL), func(ctx context.Context, j *job) (store.Image, error) {
		return js.takeOver(ctx, j, r)
	})
	if err != nil {
		return store.Image{}, store.Linked{}, err
	}
	im, err := js.follow(ctx, j, event)
	if err != nil {
		return store.Image{}, store.Linked{}, err
	}
	return im, j.linked, nil // not changed after the end
}

// takeOver is the work of an import: converting, linking or copying, and pinning.
func (js *Jobs) takeOver(ctx context.Context, j *job, r api.ImportRequest) (_ store.Image, err error) {
	m, err := openLocal(r)
	if err != nil {
		return store.Image{}, err
	}
	defer func() { err = errors.Join(m.explain(err), m.Close()) }()
	// Models of the public library are public. For other names, only the registry knows.
	im, err := js.Facade.ConvertLocal(ctx, m.ref, m.artifact, !m.artifact.Name().Official())
	if err != nil {
		return store.Image{}, err
	}
	linked := map[digest.Digest]bool{}
	j.linked, err = js.Store.Link(ctx, im.Table, store.LinkOptions{Open: m.OpenBlob, Private: m.ref.Name(), Progress: func(ps []store.Progress) {
		for _, s := range ps {
			linked[s.Blob] = s.State == string(api.StatusComplete)
		}
		js.progress(j, ps)
	}})
	if err != nil {
		return store.Image{}, err
	}
	err = js.hydrate(ctx, j, im.Table, store.HydrateOptions{Sources: []transfer.Source{{Name: m.ref.Name(), CredentialsID: "import", Fetcher: m}}, Progress: func(ps []store.Progress) {
		for i, s := range ps {
			if s.State == string(api.StatusPresent) && linked[s.Blob] {
				ps[i].State = string(api.StatusComplete) // it was not present before the import
			}
		}
		js.progress(j, ps)
	}})
	if err != nil {
		return store.Image{}, err
	}
	if err := js.finish(ctx, j, im, m.ref); err != nil {
		return store.Image{}, err
	}
	js.Log.Info("model imported from Ollama", "ref", j.Ref, "dir", m.Dir(), "reflinked", j.linked.Cloned, "linked", j.linked.Hard)
	return im, nil
}

// ImportPlan returns what Import would do. It leaves nothing in the store.
func (js *Jobs) ImportPlan(ctx context.Context, r api.ImportRequest) (_ api.ImportPlan, err error) {
	m, err := openLocal(r)
	if err != nil {
		return api.ImportPlan{}, err
	}
	defer func() { err = errors.Join(m.explain(err), m.Close()) }()
	model, manifest, err := js.Facade.BuildLocal(ctx, m.ref, m.artifact)
	if err != nil {
		return api.ImportPlan{}, err
	}
	plan := api.ImportPlan{
		LocalModel: api.LocalModel{Name: m.artifact.Name().Short(), Ref: m.ref.String()},
		Manifest:   manifest, Origin: model.Table.Origin, Blobs: []api.ImportBlob{},
	}
	for _, b := range model.Table.Blobs {
		l := api.ImportBlob{Digest: b.Digest, Size: b.Size, File: fileOf(&model.Table, b.Digest)}
		if l.State, err = js.way(m, b); err != nil {
			return api.ImportPlan{}, err
		}
		plan.Size += b.Size
		plan.Blobs = append(plan.Blobs, l)
	}
	return plan, nil
}

// way returns the State of an ImportBlob.
func (js *Jobs) way(m *localModel, b filetable.Blob) (string, error) {
	if o, err := js.Store.OpenObject(b.Digest); err == nil {
		return string(api.StatusPresent), o.Close()
	}
	f, err := m.OpenBlob(b.Digest)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if b.Archive != filetable.ArchiveNone || b.Codec != filetable.CodecNone {
		return store.LinkNone, nil
	}
	return js.Store.LinkMethod(f)
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

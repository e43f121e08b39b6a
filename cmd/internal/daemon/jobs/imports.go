package jobs

import (
	"context"
	"errors"
	"fmt"

	"github.com/ballast-dev/ballast/cmd/internal/contract/translate"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/ollama/localstore"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
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

// ImportModels returns the names of the models of the Ollama store in a directory, as Ollama users write them.
func (js *Jobs) ImportModels(_ context.Context, dir string) ([]string, error) {
	s, err := localstore.Open(dir)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	models, err := s.Models()
	if err != nil {
		return nil, err
	}
	names := []string{}
	for _, m := range models {
		names = append(names, m.Name.Short())
	}
	return names, nil
}

// A localModel is an open model of an Ollama store.
type localModel struct {
	*localstore.Store
	artifact *localstore.Artifact
	ref      remote.Ref
}

// openLocal opens the model named in a request. The caller closes it.
func openLocal(r wire.ImportRequest) (*localModel, error) {
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

// Artifact implements registry.Blobs: it returns the model.
func (m *localModel) Artifact(context.Context, ocispec.Descriptor) (convert.Artifact, error) {
	return m.artifact, nil
}

// explain adds advice to an error.
func (m *localModel) explain(err error) error {
	if err == nil || errors.Is(err, convert.ErrNotModel) || errdefs.IsCanceled(err) {
		return err
	}
	return m.Explain(m.artifact.Name(), err)
}

// Import imports a model of an Ollama on this machine, or joins the job that does: see Prefetch.
func (js *Jobs) Import(ctx context.Context, r wire.ImportRequest, event func([]wire.Event) error) ([]wire.Imported, error) {
	m, err := openLocal(r)
	if err != nil {
		return nil, err
	}
	if err := m.Close(); err != nil {
		return nil, err
	}
	j, err := js.join(ctx, wire.KindImport, m.ref.String(), " from "+r.Dir, pinFor(r.NoPin, r.TTL), func(ctx context.Context, j *job) (_ store.Image, err error) {
		m, err := openLocal(r)
		if err != nil {
			return store.Image{}, err
		}
		defer func() { err = errors.Join(m.explain(err), m.Close()) }()
		// Models of the public library are public; for other names, only the registry knows. Files are private: models
		// that a user of this machine made can also have names of the public library.
		o := registry.ImportOptions{Private: !m.artifact.Name().Official(), PrivateFiles: true}
		return js.importAll(ctx, j, m.Dir(), m, []chosenEntry{{ref: m.ref}}, o)
	})
	if err != nil {
		return nil, err
	}
	return js.imported(ctx, j, event)
}

// importAll is the work of an import of models from a source with a name: of all of them, or none. It returns the
// first.
func (js *Jobs) importAll(ctx context.Context, j *job, from string, blobs registry.Blobs, models []chosenEntry, o registry.ImportOptions) (_ store.Image, err error) {
	var imports []*registry.Import
	var out []wire.Imported
	var notModel error
	defer func() { err = errors.Join(err, registry.CloseImports(imports...)) }()
	for _, e := range models {
		i, err := js.Facade.Import(ctx, e.ref, blobs, e.desc, o)
		if errors.Is(err, convert.ErrNotModel) {
			notModel = err
			continue
		}
		if err != nil {
			return store.Image{}, err
		}
		imports = append(imports, i)
		out = append(out, wire.Imported{Ref: e.ref.String()})
	}
	if len(imports) == 0 {
		return store.Image{}, notModel
	}
	for n, i := range imports {
		js.List.change(func() { j.Ref = out[n].Ref })
		linked, err := i.Fetch(ctx, func(table digest.Digest, ps []store.Progress) {
			js.List.change(func() { j.Table = table })
			js.progress(j, ps)
		})
		if err != nil {
			return store.Image{}, fmt.Errorf("%s: %w", out[n].Ref, err)
		}
		out[n].Linked = wire.Linked(linked)
	}
	if err := context.Cause(ctx); err != nil {
		return store.Image{}, err
	}
	ctx = context.WithoutCancel(ctx) // all of them, or none
	var first store.Image
	for n, i := range imports {
		im, err := i.Commit(func(im store.Image, ref remote.Ref) error { return js.finish(ctx, j, im, ref) })
		if err != nil {
			return store.Image{}, err
		}
		if out[n].Image = translate.Image(im); n == 0 {
			first = im
		}
		js.Log.Info("model imported", "ref", out[n].Ref, "from", from, "private", o.Private, "digest", im.Manifest,
			"reflinked", out[n].Linked.Cloned, "linked", out[n].Linked.Hard)
	}
	j.imported = out
	return first, nil
}

// imported follows an import, and returns its models.
func (js *Jobs) imported(ctx context.Context, j *job, event func([]wire.Event) error) ([]wire.Imported, error) {
	if _, err := js.follow(ctx, j, event); err != nil {
		return nil, err
	}
	return j.imported, nil // not changed after the end
}

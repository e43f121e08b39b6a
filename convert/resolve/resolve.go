package resolve

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/carton"
	"github.com/ballast-dev/ballast/convert/dockerai"
	"github.com/ballast-dev/ballast/convert/kitops"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/modelpack"
	"github.com/ballast-dev/ballast/convert/ollama"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A Resolver has the settings by which names are resolved. What is not needed can be zero.
type Resolver struct {
	// Upstream reaches registries.
	Upstream *remote.Client

	// OllamaRunner is the runner whose model is taken of an Ollama list; see ollama.Choose.
	OllamaRunner string

	// Cartons are the hosts whose references name cartons at URLs: by host the URL, with
	// {repository} and {tag} in it.
	Cartons map[string]string

	// Carton says how cartons are read.
	Carton carton.Options

	// OllamaModels returns the directory of Ollama's models, dir if that is not empty. how is what a message
	// says to write to name another.
	OllamaModels func(dir, how string) (string, error)
}

// parsers returns the formats that are understood, but for lists of Ollama.
func (r *Resolver) parsers() convert.Parsers {
	return convert.Parsers{
		mediatype.FormatModelPack: modelpack.Parse,
		mediatype.FormatCNAI:      modelpack.Parse,
		mediatype.FormatCNAIEarly: modelpack.ParseEarly,
		mediatype.FormatDockerAI:  dockerai.Parse,
		mediatype.FormatOllama:    ollama.Parse,
		mediatype.FormatKitOps:    kitops.Parse,
		mediatype.FormatCarton:    carton.Parser(r.Carton),
	}
}

// An Origin is an artifact, with its manifest.
type Origin struct {
	Ref      remote.Ref         // zero if it is in no registry
	Repo     *remote.Repository // nil likewise
	Served   remote.Manifest
	Manifest *convert.Manifest // Served, parsed
	Format   mediatype.Format  // FormatImage of what passes unchanged

	artifact convert.Artifact

	runner string // that the tag names, of an Ollama list
	list   *ollama.List
	chosen ollama.Child
}

// Read returns the origin that ref names in a repository. It returns the errors of
// remote.Repository.Resolve, and an *ArtifactError.
func Read(ctx context.Context, repo *remote.Repository, ref remote.Ref) (*Origin, error) {
	served, runner, err := Tag(ctx, repo, ref)
	if err != nil {
		return nil, err
	}
	o, err := Of(ref, served)
	if err != nil {
		return nil, err
	}
	o.Repo, o.artifact, o.runner = repo, repo.Artifact(served), runner
	return o, nil
}

// Local returns the origin of an artifact that is in no registry, or read as if ref named it there.
func Local(ref remote.Ref, a convert.Artifact) (*Origin, error) {
	o, err := Of(ref, remote.Manifest{Bytes: a.Manifest(), Digest: digest.FromBytes(a.Manifest())})
	if err == nil {
		o.artifact = a
	}
	return o, err
}

// Of says what a manifest is, without access to its blobs.
func Of(ref remote.Ref, served remote.Manifest) (*Origin, error) {
	o := &Origin{Ref: ref, Served: served}
	var err error
	if o.Manifest, err = convert.ParseManifest(served.Bytes); err == nil {
		o.Format, err = convert.Detect(o.Manifest)
	}
	if err != nil {
		return nil, o.about(&ArtifactError{err})
	}
	return o, nil
}

// Tag returns the manifest that ref names. A tag that is not there and has the name of an Ollama runner at
// its end stands for the model of that runner in the list that the tag without it names.
func Tag(ctx context.Context, r *remote.Repository, ref remote.Ref) (m remote.Manifest, runner string, err error) {
	m, err = r.Resolve(ctx, ref)
	tag, runner := ollama.CutRunner(ref.Tag)
	if runner == "" || !errdefs.IsNotFound(err) {
		return m, "", err
	}
	ref.Tag = tag
	m, listErr := r.Resolve(ctx, ref)
	if listErr != nil {
		return remote.Manifest{}, "", err
	}
	if parsed, parseErr := convert.ParseManifest(m.Bytes); parseErr != nil || !ollama.IsList(parsed) {
		return remote.Manifest{}, "", err
	}
	return m, runner, nil
}

// about adds the reference to an error.
func (o *Origin) about(err error) error {
	if o.Ref == (remote.Ref{}) {
		return err
	}
	return fmt.Errorf("%s: %w", o.Ref, err)
}

// Child returns the reference of an entry of an index.
func (o *Origin) Child(d digest.Digest) remote.Ref {
	return remote.Ref{Host: o.Ref.Host, Repository: o.Ref.Repository, Digest: d}
}

// IsTable says whether a layer is a file table.
func IsTable(d convert.Descriptor) bool { return d.MediaType == mediatype.TableLayer }

// Ahead says whether o is an image that was converted before it was pushed.
func (o *Origin) Ahead() bool { return slices.ContainsFunc(o.Manifest.Layers, IsTable) }

// IsModel says whether o is a model that is to be converted.
func (o *Origin) IsModel() bool {
	return o.Format != mediatype.FormatImage && o.Format != mediatype.FormatIndex
}

// Choose takes the model for a runner, if o is a list of Ollama; before Key.
func (o *Origin) Choose(runner string) { o.runner = cmp.Or(runner, o.runner) }

// Forget drops the documents, which can be large. What o was read from is still known.
func (o *Origin) Forget() {
	o.Served.Bytes, o.Manifest, o.list, o.artifact = nil, nil, nil, nil
	o.chosen = ollama.Child{}
}

// Key returns what the image is made from. Of a list it chooses the model.
func (r *Resolver) Key(o *Origin) (filetable.Origin, error) {
	if o.Format != mediatype.FormatOllamaList {
		return filetable.Origin{Format: string(o.Format), Digest: o.Served.Digest, Mapping: convert.MappingVersion}, nil
	}
	var err error
	if o.list == nil {
		if o.list, err = ollama.ParseList(o.Served.Bytes); err == nil {
			o.chosen, err = ollama.Choose(o.list, cmp.Or(o.runner, r.OllamaRunner))
		}
	}
	if err != nil {
		return filetable.Origin{}, o.about(&ArtifactError{err})
	}
	return ollama.Origin(o.list, o.chosen), nil
}

// Model parses an origin that is a model. It returns convert.ErrNotModel for one that turns out to be none,
// errdefs.ErrNotImplemented, naming the format, for one that is not supported, and otherwise the errors of its
// parser, all in an *ArtifactError.
func (r *Resolver) Model(ctx context.Context, o *Origin) (*convert.Model, error) {
	if _, err := r.Key(o); err != nil {
		return nil, err
	}
	model, err := r.parse(ctx, o)
	if err != nil {
		return nil, o.about(&ArtifactError{err})
	}
	return model, nil
}

func (r *Resolver) parse(ctx context.Context, o *Origin) (*convert.Model, error) {
	if o.Format == mediatype.FormatOllamaList {
		p, err := ollama.ReadChild(ctx, o.artifact, o.chosen)
		if err != nil {
			return nil, fmt.Errorf("manifest list %s: %w", o.list.Digest, err)
		}
		return ollama.ParseChild(ctx, o.artifact, o.list, o.chosen, p)
	}
	return r.parsers().ParseAs(ctx, o.Format, o.artifact, o.Manifest)
}

// CartonURL returns the URL of the carton that a reference stands for: one that is a URL, or of one of
// the hosts of Cartons.
func (r *Resolver) CartonURL(ref remote.Ref) (address string, ok bool) {
	if ref.URL != "" {
		return ref.URL, true
	}
	template, ok := r.Cartons[ref.Host]
	if !ok {
		return "", false
	}
	// Neither can have a character that means something in a URL, or go up.
	return strings.NewReplacer("{repository}", ref.Repository, "{tag}", ref.Tag).Replace(template), true
}

// FormatOf returns the format of an origin (filetable.Origin.Format), without the runner of an Ollama list. ok is
// false for what is not made here: what others say that they made can be anything.
func FormatOf(s string) (f mediatype.Format, ok bool) {
	name, _, _ := strings.Cut(s, "/")
	f = mediatype.Format(name)
	_, ok = (&Resolver{}).parsers()[f]
	return f, ok || slices.Contains([]mediatype.Format{mediatype.FormatOllamaList, mediatype.FormatFiles, mediatype.FormatIndex}, f)
}

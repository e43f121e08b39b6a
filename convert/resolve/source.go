package resolve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/carton"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/layout"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/ollama/localstore"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
)

// A Source is a model with the place its bytes are.
type Source struct {
	// Name is what the source is called, for messages only.
	Name string

	// Origin is nil if the model is in no artifact: files, and cartons that are not layers.
	Origin *Origin

	// Model is nil if Origin is no model; see NotModel.
	Model *convert.Model

	// Fetcher reads the blobs of the model. It is not trusted.
	Fetcher transfer.Fetcher

	// Host and Repository say where a registry has the blobs, to mount them; can be empty.
	Host       string
	Repository string

	// Losses are what is known to be left out already.
	Losses []string

	ahead *Preconverted // if it is an image that was converted before
	close []func() error
}

// Close frees what the source holds. The Fetcher must not be used any more.
func (s *Source) Close() error {
	var errs []error
	for _, f := range s.close {
		errs = append(errs, f())
	}
	s.close = nil
	return errors.Join(errs...)
}

// Image returns the image that a node makes of the model: itself, if it was converted before.
func (s *Source) Image() (*image.Image, error) {
	if s.ahead != nil {
		return &s.ahead.Image, nil
	}
	im, err := image.Build(s.Model)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Name, &ArtifactError{err})
	}
	return im, nil
}

// NotModel returns an error if there is no Model: for an index errdefs.ErrFailedPrecondition, with the names of
// its entries, and otherwise convert.ErrNotModel with errdefs.ErrNotImplemented.
func (s *Source) NotModel() error {
	if s.Model != nil {
		return nil
	}
	o := s.Origin
	if o.Format != mediatype.FormatIndex {
		return fmt.Errorf("%s is an %s, %w: %w", s.Name, o.Format, convert.ErrNotModel, errdefs.ErrNotImplemented)
	}
	var names []string
	for _, e := range o.Manifest.Manifests {
		names = append(names, o.Child(e.Digest).String())
	}
	return fmt.Errorf("%s is an index; name one of its entries:\n  %s: %w", s.Name, strings.Join(names, "\n  "), errdefs.ErrFailedPrecondition)
}

// Open finds what a name stands for, and parses it if it is a model. The caller closes the source. It returns a
// *NameError for what is no name.
func (r *Resolver) Open(ctx context.Context, name string) (*Source, error) {
	kind := kindOf(name)
	s := &Source{Name: name}
	var err error
	switch kind {
	case kindLayout:
		err = r.openLayout(ctx, s)
	case kindOllama:
		err = r.openOllama(ctx, s)
	case kindURL:
		address, _ := CartonAddress(name)
		err = r.openURL(ctx, s, address)
	case kindCarton:
		err = r.openCarton(ctx, s)
	case kindFiles:
		s, err = OpenFiles(ctx, name)
	default:
		err = r.openReference(ctx, s)
	}
	if err != nil && s != nil {
		err = errors.Join(err, s.Close())
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (r *Resolver) openReference(ctx context.Context, s *Source) error {
	ref, err := ParseRef(s.Name)
	if err != nil {
		return &NameError{err}
	}
	if address, ok := r.CartonURL(ref); ok {
		if ref.Digest != "" {
			return &NameError{fmt.Errorf("%s: a carton at a URL has a tag: %w", ref, errdefs.ErrInvalidArgument)}
		}
		return mapped(ref, address, r.openURL(ctx, s, address))
	}
	repo, err := r.Upstream.Repository(ref, nil)
	if err != nil {
		return err
	}
	o, err := Read(ctx, repo, ref)
	if err != nil {
		return err
	}
	s.Name = ref.String()
	if err := r.open(ctx, s, o, repo); err != nil {
		return err
	}
	if len(s.close) == 0 { // the blobs of a carton are in no repository
		s.Host, s.Repository = ref.Host, ref.Repository
	}
	return nil
}

// mapped adds to an error of the carton at a URL the reference that the configuration maps to it. The
// query is left out: it can be a secret.
func mapped(ref remote.Ref, address string, err error) error {
	if err == nil || ref.URL != "" {
		return err
	}
	address, _, _ = strings.Cut(address, "?")
	return fmt.Errorf("%s, which is %s here: %w", ref, address, err)
}

// OpenArtifact is Open for an artifact whose blobs f reads.
func (r *Resolver) OpenArtifact(ctx context.Context, name string, a convert.Artifact, f transfer.Fetcher) (*Source, error) {
	s := &Source{Name: name}
	o, err := Local(remote.Ref{}, a)
	if err == nil {
		err = r.open(ctx, s, o, f)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, errors.Join(err, s.Close()))
	}
	return s, nil
}

// open makes s a source of o, whose blobs f reads. Files of a carton that is a layer are read from that.
func (r *Resolver) open(ctx context.Context, s *Source, o *Origin, f transfer.Fetcher) (err error) {
	s.Origin, s.Fetcher = o, f
	switch {
	case o.Ahead():
		if s.ahead, err = o.Preconverted(ctx); err == nil {
			s.Model, s.Losses, err = s.ahead.model(o.Manifest)
		}
	case !o.IsModel():
	case o.Format == mediatype.FormatCarton:
		err = r.openLayer(ctx, s, o, f)
	default:
		s.Model, err = r.Model(ctx, o)
	}
	return err
}

// openLayer makes s a source of a carton that is a layer of o, which is opened once.
func (r *Resolver) openLayer(ctx context.Context, s *Source, o *Origin, f transfer.Fetcher) error {
	i, ok := o.Manifest.CartonLayer()
	if !ok {
		_, err := r.Model(ctx, o) // has the error
		return err
	}
	options, l := r.Carton, o.Manifest.Layers[i]
	options.Hash = ""
	c, err := carton.Open(ctx, carton.Blob(f, l.Digest, l.Size), options)
	if err == nil {
		s.Fetcher, s.close = c.Fetcher(), append(s.close, c.Close)
		s.Model, err = c.LayerModel(ctx, o.artifact, o.Manifest)
	}
	if err != nil {
		return o.about(&ArtifactError{fmt.Errorf("%s model: layer %d (%s): %w", o.Format, i, l.Digest, err)})
	}
	return nil
}

func (r *Resolver) openLayout(ctx context.Context, s *Source) error {
	dir, tag := s.Name, ""
	if rest, ok := strings.CutPrefix(s.Name, LayoutScheme); ok {
		dir, tag = SplitLayout(rest)
	}
	l, err := layout.Open(dir, tag)
	if err != nil {
		return err
	}
	s.close = append(s.close, l.Close)
	a, err := l.Artifact()
	if err != nil {
		return err
	}
	return r.openLocal(ctx, s, a, l)
}

// openLocal is open for what is on this machine.
func (r *Resolver) openLocal(ctx context.Context, s *Source, a convert.Artifact, f transfer.Fetcher) error {
	o, err := Local(remote.Ref{}, a)
	if err == nil {
		err = r.open(ctx, s, o, f)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	return nil
}

func (r *Resolver) openOllama(ctx context.Context, s *Source) error {
	dir, model := splitOllama(strings.TrimPrefix(s.Name, ollamaScheme))
	if _, err := localstore.ParseName(model); err != nil {
		return &NameError{err}
	}
	dir, err := r.OllamaModels(dir, "ollama:DIR:"+model)
	if err != nil {
		return err
	}
	models, err := localstore.Open(dir)
	if err != nil {
		return err
	}
	s.close = append(s.close, models.Close)
	a, err := models.Artifact(model)
	if err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	if err := r.openLocal(ctx, s, a, models); err != nil {
		return models.Explain(a.Name(), err)
	}
	return nil
}

func (r *Resolver) openCarton(ctx context.Context, s *Source) (err error) {
	var src carton.Source
	if info, statErr := os.Stat(s.Name); statErr == nil && info.IsDir() {
		src, err = carton.OpenFolder(s.Name)
	} else {
		src, err = carton.OpenFile(s.Name)
	}
	if err != nil {
		return err
	}
	if err := r.fromCarton(ctx, s, src); err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	return nil
}

func (r *Resolver) openURL(ctx context.Context, s *Source, address string) error {
	src, err := carton.OpenURL(ctx, address, r.Carton)
	if err != nil {
		return err
	}
	return r.fromCarton(ctx, s, src)
}

// fromCarton makes s a source of a carton, and takes src over.
func (r *Resolver) fromCarton(ctx context.Context, s *Source, src carton.Source) error {
	c, err := carton.Open(ctx, src, r.Carton)
	if err != nil {
		return &ArtifactError{err}
	}
	s.close = append(s.close, c.Close)
	s.Fetcher = c.Fetcher()
	if s.Model, err = c.Model(ctx); err != nil {
		return &ArtifactError{err}
	}
	return nil
}

package resolve

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A Source is a model with the source of its bytes.
type Source struct {
	// Name is the name of the source, for messages only.
	Name string

	// Origin is nil if the model is not in an artifact: files, and archives that are not layers.
	Origin *Origin

	// Manifest is the digest of the manifest of the artifact; empty without one. Choose keeps it.
	Manifest digest.Digest

	// Model is nil if Origin is not a model; see NotModel.
	Model *convert.Model

	// Fetcher reads the blobs of the model. It is not trusted.
	Fetcher transfer.Fetcher

	// Host and Repository are the place of the blobs in a registry, for mounting them; may be
	// empty.
	Host       string
	Repository string

	// Losses are facts that are already left out.
	Losses []string

	// Problems are what is wrong with the files, as far as it is known before they are read.
	Problems []string

	// Pointers are the paths of files that have only the address of their content (Git LFS).
	Pointers []string

	describe func(context.Context, *convert.Model) []string // format.Source.Describe
	ahead    *Preconverted                                  // set for an image that was converted before it was pushed
	close    []func() error
}

// Close releases the source. The Fetcher must not be used any more.
func (s *Source) Close() error {
	var errs []error
	for _, f := range s.close {
		errs = append(errs, f())
	}
	s.close = nil
	return errors.Join(errs...)
}

// Image returns the image that a node makes of the model; see Preconverted for one that was converted before it was
// pushed.
func (s *Source) Image() (*image.Image, error) {
	if s.ahead != nil {
		return &s.ahead.Image, nil
	}
	im, err := image.Build(s.Model)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Name, &format.ArtifactError{Err: err})
	}
	return im, nil
}

// Extended reports whether the image is one that was made from a model, and has more than that; see Preconverted.
func (s *Source) Extended() bool { return s.ahead != nil && s.ahead.Extends }

// Choose keeps only the chosen files of a model, and describes these. The result is another model, in no artifact; see
// convert.Choice.Of for errors.
func (s *Source) Choose(ctx context.Context, c convert.Choice) error {
	m, err := c.Of(s.Model)
	if err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	if m != s.Model {
		s.Model, s.Origin, s.ahead = m, nil, nil
		if s.describe != nil {
			s.Problems = s.describe(ctx, m)
		}
	}
	return nil
}

// Place sets the directory of the model in a mount (filetable.Origin.Prefix), which is another image then.
func (s *Source) Place(prefix string) {
	m := *s.Model
	m.Table.Origin.Prefix = prefix
	s.Model, s.ahead = &m, nil
}

// NotModel returns an error if there is no Model: for an index errdefs.ErrFailedPrecondition, with
// the names of its entries, otherwise convert.ErrNotModel with errdefs.ErrNotImplemented.
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

// Open finds the source of a name, and parses it if it is a model. The caller closes the source. It
// returns a *format.NameError for an invalid name.
func (r *Resolver) Open(ctx context.Context, name string) (*Source, error) {
	s := &Source{Name: name}
	if err := r.find(ctx, s); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (r *Resolver) find(ctx context.Context, s *Source) error {
	if page, err := formats.All().OfPage(s.Name); page != "" || err != nil {
		return r.openReference(ctx, s)
	}
	if f, address := formats.All().OfURL(s.Name); f != nil {
		return r.openURL(ctx, s, f, address, address)
	}
	n := nameOf(s.Name)
	for _, f := range formats.All() {
		if f.Place == nil || !f.Place.Takes(n) {
			continue
		}
		found, err := f.Place.Open(ctx, r.Settings, s.Name)
		if err != nil {
			return err
		}
		return r.take(ctx, s, found)
	}
	return r.openReference(ctx, s)
}

// take makes s a source of what was found on this machine.
func (r *Resolver) take(ctx context.Context, s *Source, found *format.Source) error {
	s.Model, s.Fetcher, s.Losses = found.Model, found.Fetcher, found.Losses
	s.Problems, s.Pointers, s.describe = found.Problems, found.Pointers, found.Describe
	if found.Close != nil {
		s.close = append(s.close, found.Close)
	}
	if found.Artifact == nil {
		return nil
	}
	o, err := Local(remote.Ref{}, found.Artifact)
	if err == nil {
		err = r.open(ctx, s, o, found.Fetcher)
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s: %w", s.Name, err)
	if found.Explain != nil {
		err = found.Explain(err)
	}
	return err
}

// OpenLocal opens an origin made by Local, whose blobs f reads. The Model is nil if it is not one; see NotModel.
// The caller closes the source.
func (r *Resolver) OpenLocal(ctx context.Context, o *Origin, f transfer.Fetcher) (*Source, error) {
	s := &Source{Name: o.Ref.String()}
	if err := r.open(ctx, s, o, f); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (r *Resolver) openReference(ctx context.Context, s *Source) error {
	ref, err := ParseRef(s.Name)
	if err != nil {
		return &format.NameError{Err: err}
	}
	if f, address := r.Archive(ref); f != nil {
		if ref.Digest != "" {
			return &format.NameError{Err: fmt.Errorf("%s: a %s at a URL has a tag: %w", ref, f.Name, errdefs.ErrInvalidArgument)}
		}
		return mapped(ref, address, r.openURL(ctx, s, f, ref.Name(), address))
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
	if len(s.close) == 0 { // the files of an archive are not in a repository
		s.Host, s.Repository = ref.Host, ref.Repository
	}
	return nil
}

// mapped adds, to an error of the archive at a URL, the reference that the configuration maps to
// it. The query is left out: it can be a secret.
func mapped(ref remote.Ref, address string, err error) error {
	if err == nil || ref.URL != "" {
		return err
	}
	address, _, _ = strings.Cut(address, "?")
	return fmt.Errorf("%s, which is %s here: %w", ref, address, err)
}

// open makes s a source of o, whose blobs f reads. Files of an archive that is a layer are read
// from the archive.
func (r *Resolver) open(ctx context.Context, s *Source, o *Origin, f transfer.Fetcher) (err error) {
	s.Origin, s.Manifest, s.Fetcher = o, o.Served.Digest, f
	if r.WantsTitled(o) {
		o.AsFiles()
	}
	switch {
	case o.Ahead():
		if s.ahead, err = o.Preconverted(ctx); err == nil {
			s.Model = s.ahead.Model
		}
	case !o.isModel():
	case o.IsArchive():
		err = r.openLayer(ctx, s, o, f)
	default:
		s.Model, err = r.Model(ctx, o)
	}
	return err
}

// openLayer makes s a source of an archive that is a layer of o, which is opened once.
func (r *Resolver) openLayer(ctx context.Context, s *Source, o *Origin, f transfer.Fetcher) error {
	a, err := r.Layer(ctx, o, f)
	if err != nil {
		return err
	}
	s.Fetcher, s.close = a.Fetcher(), append(s.close, a.Close)
	s.Model, err = r.LayerModel(ctx, o, a)
	return err
}

// Layer opens the archive that is a layer of o, whose blobs f reads. The files that it lists are not verified, unlike
// their content, so the list comes from the registry and not from its mirrors. The caller closes the archive.
func (r *Resolver) Layer(ctx context.Context, o *Origin, f transfer.Fetcher) (format.Archive, error) {
	from := &layerBlobs{f}
	if o.Repo != nil {
		from.Fetcher = o.Repo.Unverified()
	}
	a, err := formats.All().Get(string(o.Format)).Archives.Layer(ctx, r.Settings, o.Manifest, from)
	from.Fetcher = f
	return a, o.wrong(err)
}

// layerBlobs reads an archive, from elsewhere while it is being opened.
type layerBlobs struct{ transfer.Fetcher }

// LayerModel is Model for a caller that has opened the archive that is a layer of o.
func (r *Resolver) LayerModel(ctx context.Context, o *Origin, a format.Archive) (*convert.Model, error) {
	m, err := a.LayerModel(ctx, o.artifact, o.Manifest)
	if err != nil {
		return nil, o.wrong(err)
	}
	m.Table.Origin.Prefix = r.PrefixOf(o.Ref.Name())
	return m, nil
}

// wrong returns err as an error of the model.
func (o *Origin) wrong(err error) error {
	if err == nil {
		return nil
	}
	return o.about(&format.ArtifactError{Err: fmt.Errorf("%s model: %w", o.Format, err)})
}

// openURL makes s a source of the archive at a URL, which has the name.
func (r *Resolver) openURL(ctx context.Context, s *Source, f *format.Format, name, address string) error {
	a, err := f.Archives.URL(ctx, r.Settings, address, "")
	found, err := format.Opened(ctx, a, err)
	if err != nil {
		return err
	}
	if err := r.take(ctx, s, found); err != nil {
		return err
	}
	s.Model.Table.Origin.Prefix = r.PrefixOf(name)
	return nil
}

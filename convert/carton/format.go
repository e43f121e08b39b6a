package carton

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/losses"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Format is the format of cartons.
var Format = format.Format{
	Name: mediatype.FormatCarton, Detect: detect, Parse: parse, Limits: []string{LimitLinked, LimitRequests},
	Writer:   &format.Writer{Extension: extension, FromFiles: fromFiles, Pack: Pack},
	Place:    &format.Place{Takes: takes, Open: openName},
	Archives: &format.Archives{Layer: openLayer, URL: openURL},
	Losses: losses.Rules{Always: []losses.Loss{
		{What: "shapes, names and types of inputs and outputs beyond text and other", Kept: "file carton.toml"},
		{What: "options and compat version of the runner, self-tests, examples", Kept: "file carton.toml"},
		{What: "LINKS, if the carton has it: addresses of files that are elsewhere"},
		{What: "order, compression, times and links of the members of the archive"},
	}},
}

// extension is the extension of cartons.
const extension = ".carton"

// layerOf returns the layer of an artifact or image that is a carton: the one with a title or path
// that ends in .carton, or with the media type of cartons. ok is false if there is none, or more
// than one.
func layerOf(m *convert.Manifest) (layer int, ok bool) {
	for i, l := range m.Layers {
		named := strings.HasSuffix(strings.ToLower(mediatype.Filepath(l.Annotations)), extension)
		if !named && mediatype.FormatOf(l.MediaType) != mediatype.FormatCarton {
			continue
		}
		if ok {
			return 0, false
		}
		layer, ok = i, true
	}
	return layer, ok
}

func detect(m *convert.Manifest) (format.Claim, error) {
	if _, ok := layerOf(m); ok {
		return format.ByFile, nil
	}
	return format.None, nil
}

// optionsOf returns the options of a carton. The HTTP function decides which URLs are allowed.
func optionsOf(s format.Settings) Options {
	return Options{HTTP: s.HTTP, TempDir: s.TempDir, Log: s.Log}
}

func openLayer(ctx context.Context, s format.Settings, m *convert.Manifest, f transfer.Fetcher) (format.Archive, error) {
	c, err := openIn(ctx, s, m, func(l convert.Descriptor) (Source, error) { return Blob(f, l.Digest, l.Size), nil })
	if err != nil {
		return nil, err
	}
	return c, nil
}

// openIn opens the carton that is a layer of an artifact with the manifest m.
func openIn(ctx context.Context, s format.Settings, m *convert.Manifest, source func(convert.Descriptor) (Source, error)) (c *Carton, err error) {
	i, ok := layerOf(m)
	if !ok {
		return nil, fmt.Errorf("manifest %s: no layer, or more than one, that is a carton: %w", m.Digest, errdefs.ErrInvalidArgument)
	}
	src, err := source(m.Layers[i])
	if err == nil {
		c, err = Open(ctx, src, optionsOf(s))
	}
	if err != nil {
		return nil, fmt.Errorf("layer %d (%s): %w", i, m.Layers[i].Digest, err)
	}
	return c, nil
}

// parse parses artifacts and images with a layer that is a carton. The origin of the model is the
// manifest of the artifact; the model hash is the revision. Blobs of the model are files of the
// carton, which its Fetcher reads.
func parse(ctx context.Context, s format.Settings, a convert.Artifact, m *convert.Manifest) (*convert.Model, error) {
	c, err := openIn(ctx, s, m, func(l convert.Descriptor) (Source, error) {
		r, err := a.BlobAt(ctx, l.Descriptor)
		return At(r, l.Size), err
	})
	if err != nil {
		return nil, err
	}
	model, err := c.LayerModel(ctx, a, m)
	return model, errors.Join(err, c.Close())
}

// LayerModel is Model for a carton that is a layer of an artifact with the manifest m.
func (c *Carton) LayerModel(ctx context.Context, a convert.Artifact, m *convert.Manifest) (*convert.Model, error) {
	model, err := c.Model(ctx)
	if err != nil {
		return nil, err
	}
	model.Table.Origin = filetable.Origin{Format: string(mediatype.FormatCarton), Digest: m.Digest, Mapping: convert.MappingVersion}
	if model.Documents, err = convert.ReadDocuments(ctx, a, m); err != nil {
		return nil, fmt.Errorf("manifest %s: %w", m.Digest, err)
	}
	return model, nil
}

func openURL(ctx context.Context, s format.Settings, address string, hash digest.Digest) (format.Archive, error) {
	o := optionsOf(s)
	o.Hash = hash
	src, err := OpenURL(ctx, address, o)
	if err != nil {
		return nil, err
	}
	c, err := Open(ctx, src, o)
	if err != nil {
		return nil, &format.ArtifactError{Err: err}
	}
	return c, nil
}

// takes reports whether a name is a local carton: a directory with an unpacked one, or a name that
// ends in .carton and is not the name of a repository.
func takes(n format.Name) bool {
	switch {
	case n.IsPath && IsFolder(n.Text):
		return true
	case !strings.HasSuffix(strings.ToLower(n.Text), extension):
		return false
	case !n.IsReference || n.IsPath:
		return true
	}
	_, err := os.Lstat(n.Text)
	return err == nil
}

func openName(ctx context.Context, s format.Settings, name string) (*format.Source, error) {
	c, err := openLocal(ctx, s, name)
	if err != nil {
		return nil, err
	}
	found, err := format.Opened(ctx, c, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return found, nil
}

func openLocal(ctx context.Context, s format.Settings, name string) (*Carton, error) {
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		c, err := OpenFolder(ctx, name, optionsOf(s))
		if err != nil {
			return nil, &format.ArtifactError{Err: err}
		}
		return c, nil
	}
	src, err := OpenFile(name)
	if err != nil {
		return nil, err
	}
	c, err := Open(ctx, src, optionsOf(s))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, &format.ArtifactError{Err: err})
	}
	return c, nil
}

package carton

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/losses"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Format is the format of cartons.
var Format = format.Format{
	Name: mediatype.FormatCarton, Detect: detect, Parse: parse, Limits: []string{LimitLinked},
	Writer:   &format.Writer{Extension: extension, FromFiles: FromFiles, Pack: Pack},
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
	return Options{HTTP: s.HTTP, AllowHTTP: true, TempDir: s.TempDir, Log: s.Log}
}

func openLayer(ctx context.Context, s format.Settings, m *convert.Manifest, f transfer.Fetcher) (format.Archive, error) {
	i, ok := layerOf(m)
	if !ok {
		return nil, fmt.Errorf("manifest %s: no layer, or more than one, that is a carton: %w", m.Digest, errdefs.ErrInvalidArgument)
	}
	l := m.Layers[i]
	c, err := Open(ctx, Blob(f, l.Digest, l.Size), optionsOf(s))
	if err != nil {
		return nil, fmt.Errorf("layer %d (%s): %w", i, l.Digest, err)
	}
	return c, nil
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
	var src Source
	var err error
	if info, statErr := os.Stat(name); statErr == nil && info.IsDir() {
		src, err = OpenFolder(name)
	} else {
		src, err = OpenFile(name)
	}
	if err != nil {
		return nil, err
	}
	c, err := Open(ctx, src, optionsOf(s))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, &format.ArtifactError{Err: err})
	}
	found, err := format.Opened(ctx, c, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return found, nil
}

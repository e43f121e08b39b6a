package carton

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
)

// parse parses artifacts and images with a layer that is a carton. The origin of the model is the
// manifest of the artifact; the model hash is the revision. Blobs of the model are files of the
// carton, which its Fetcher reads.
func parse(ctx context.Context, s format.Settings, a convert.Artifact, m *convert.Manifest) (_ *convert.Model, err error) {
	i, ok := layerOf(m)
	if !ok {
		return nil, fmt.Errorf("manifest %s: no layer, or more than one, that is a carton: %w", m.Digest, errdefs.ErrInvalidArgument)
	}
	l := m.Layers[i]
	r, err := a.BlobAt(ctx, l.Descriptor)
	if err != nil {
		return nil, fmt.Errorf("layer %d (%s): %w", i, l.Digest, err)
	}
	if c, ok := r.(io.Closer); ok {
		defer func() { err = errors.Join(err, c.Close()) }()
	}
	c, err := Open(ctx, At(r, l.Size), optionsOf(s))
	if err != nil {
		return nil, fmt.Errorf("layer %d (%s): %w", i, l.Digest, err)
	}
	model, err := c.LayerModel(ctx, a, m)
	if err != nil {
		return nil, fmt.Errorf("layer %d (%s): %w", i, l.Digest, err)
	}
	return model, nil
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

package push

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Layers of an image. Runtimes mount at most some 128 layers.
const (
	maxOwnLayers = 96
	ownLayer     = 4 << 20 // bytes from which on a file has a layer of its own
)

// planImage plans a plain image: a tar for each large file, and one for all others.
func (c *conversion) planImage(ctx context.Context) (*plan, error) {
	files, err := c.files(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkWhiteouts(files); err != nil {
		return nil, err
	}
	p := &plan{}
	if c.hidden(p) {
		return p, nil
	}
	if p.layers, err = c.imageLayers(files); err != nil {
		return nil, err
	}
	c.lose("what is known of the model but its files (its config, and the kinds of its files), which an image has no place for")
	p.documents = func() (documents, error) { return c.imageDocuments(p.layers), nil }
	return p, nil
}

// imageLayers returns the layers of files.
func (c *conversion) imageLayers(files []file) (layers []*layer, err error) {
	if c.o.Compress == CompressChunked {
		for _, k := range packFiles(files, c.o.Compress) {
			k.prepare = func(ctx context.Context) error { return c.compress(ctx, k) }
			k.desc.MediaType = mediatype.OCILayerZstd
			layers = append(layers, k.layer)
		}
		return layers, nil
	}
	dirs := map[string]file{}
	for _, f := range files {
		if f.Type == filetable.TypeDir {
			dirs[f.Path] = f
		}
	}
	own, rest := group(files)
	groups := make([][]file, 0, len(own)+1)
	if len(rest) > 0 {
		groups = append(groups, rest)
	}
	for _, f := range own {
		groups = append(groups, []file{f})
	}
	for _, g := range groups {
		l, err := tarLayer(withParents(g, dirs), mediatype.OCILayer)
		if err != nil {
			return nil, err
		}
		if l.name = g[0].Path; len(g) > 1 {
			l.name = fmt.Sprintf("%d small files", len(g))
		}
		layers = append(layers, l)
	}
	return layers, nil
}

// group parts the files that have layers of their own from those that share one, both by path.
func group(files []file) (own, rest []file) {
	bySize := slices.Clone(files)
	slices.SortStableFunc(bySize, func(a, b file) int { return cmp.Compare(b.Size, a.Size) })
	alone := map[string]bool{}
	for _, f := range bySize {
		if f.Type == filetable.TypeReg && f.Size >= ownLayer && len(alone) < maxOwnLayers {
			alone[f.Path] = true
		}
	}
	for _, f := range files {
		if alone[f.Path] {
			own = append(own, f)
		} else {
			rest = append(rest, f)
		}
	}
	return own, rest
}

// tarLayer returns the layer of a tar of files.
func tarLayer(files []file, mediaType string) (*layer, error) {
	t, err := newTarball(files)
	if err != nil {
		return nil, err
	}
	return &layer{desc: ocispec.Descriptor{MediaType: mediaType, Size: t.size}, open: t.open}, nil
}

// hidden adds to the plan of a dry run the archives whose files are not known before they are
// unpacked, and reports whether there are any. Of the other files nothing can be said for sure then.
func (c *conversion) hidden(p *plan) bool {
	if !c.o.DryRun {
		return false
	}
	names := blobNames(c.src.Model)
	for _, u := range c.src.Model.Table.Unpacks {
		p.layers = append(p.layers, &layer{name: names[u.Blob] + " (is unpacked)", desc: ocispec.Descriptor{MediaType: mediatype.OCILayer, Size: -1}})
	}
	return len(p.layers) > 0
}

// imageDocuments returns the manifest and the config of a plain image.
func (c *conversion) imageDocuments(layers []*layer) documents {
	cfg := ocispec.Image{
		Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"},
		RootFS:   ocispec.RootFS{Type: "layers"},
	}
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: mediatype.OCIManifest,
		Annotations: c.origin(),
	}
	for _, l := range layers {
		m.Layers = append(m.Layers, l.desc)
		cfg.RootFS.DiffIDs = append(cfg.RootFS.DiffIDs, cmp.Or(l.diffID, l.desc.Digest))
	}
	p := encode(cfg)
	m.Config = ocispec.Descriptor{MediaType: mediatype.OCIConfig, Digest: digest.FromBytes(p), Size: int64(len(p))}
	return documents{encode(m), mediatype.OCIManifest, [][]byte{p}}
}

// origin returns the annotations that say what the model was made from.
func (c *conversion) origin() map[string]string {
	o := c.src.Model.Table.Origin
	return map[string]string{
		mediatype.AnnotationOriginFormat: o.Format,
		mediatype.AnnotationOriginDigest: o.Digest.String(),
		mediatype.AnnotationMapping:      strconv.Itoa(o.Mapping),
	}
}

package export

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Limits for the layers of an image. Runtimes mount at most about 128 layers.
const (
	maxOwnLayers = 96
	ownLayer     = 4 << 20 // minimal size of a file with its own layer, in bytes
)

// planImage plans a plain image: a tar for each large file, and one for all others.
func (j *job) planImage(ctx context.Context) (*plan, error) {
	files, err := j.files(ctx)
	if err == nil {
		files, err = j.placed(files)
	}
	if err != nil {
		return nil, err
	}
	if err := checkWhiteouts(files); err != nil {
		return nil, err
	}
	p := &plan{items: j.hidden()}
	if len(p.items) > 0 {
		return p, nil // nothing is certain about the other files
	}
	for _, b := range tars(files) {
		it := j.compressed(b, mediatype.OCILayerZstd)
		if j.o.Compress == CompressNone {
			if it, err = tarItem(b.name, b.files, mediatype.OCILayer); err != nil {
				return nil, err
			}
		}
		p.items = append(p.items, it)
	}
	j.found(describe(ctx, files).Problems)
	j.lose("the model's config and the kinds of its files: an image has files only")
	annotations := image.Origin(j.src.Model.Table.Origin)
	if err := j.annotate(annotations); err != nil {
		return nil, err
	}
	p.documents = func(all []*item) (documents, error) { return imageDocuments(all, annotations), nil }
	return p, nil
}

// tars returns the files as tars: one for the small files, and one for each other file.
func tars(files []file) (list []bundle) {
	dirs := map[string]file{}
	for _, f := range files {
		if f.Type == filetable.TypeDir {
			dirs[f.Path] = f
		}
	}
	own, rest := group(files)
	if len(rest) > 0 {
		list = append(list, newBundle(rest, withParents(rest, dirs)...))
	}
	for _, f := range own {
		list = append(list, newBundle([]file{f}, withParents([]file{f}, dirs)...))
	}
	return list
}

// group separates the files with their own layers from those that share one, both by path.
func group(files []file) (own, rest []file) {
	alone := largest(files, maxOwnLayers, ownLayer)
	for _, f := range files {
		if alone[f.Path] {
			own = append(own, f)
		} else {
			rest = append(rest, f)
		}
	}
	return own, rest
}

// largest returns the paths of the n largest regular files of a size or more, of equal ones the first.
func largest(files []file, n int, least int64) map[string]bool {
	bySize := slices.Clone(files)
	slices.SortStableFunc(bySize, func(a, b file) int { return cmp.Compare(b.Size, a.Size) })
	paths := map[string]bool{}
	for _, f := range bySize {
		if f.Type == filetable.TypeReg && f.Size >= least && len(paths) < n {
			paths[f.Path] = true
		}
	}
	return paths
}

// tarItem returns the item of a tar of files.
func tarItem(name string, files []file, mediaType string) (*item, error) {
	t, err := newTarball(files)
	if err != nil {
		return nil, err
	}
	return t.item(name, mediaType), nil
}

// imageDocuments returns the manifest and the config of a plain image.
func imageDocuments(all []*item, annotations map[string]string) documents {
	cfg := ocispec.Image{
		Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"},
		RootFS:   ocispec.RootFS{Type: "layers"},
	}
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: mediatype.OCIManifest, Annotations: annotations}
	for _, s := range all {
		diffID := s.desc.Digest
		if s.packed != nil {
			diffID = s.packed.plain
		}
		m.Layers = append(m.Layers, s.desc)
		cfg.RootFS.DiffIDs = append(cfg.RootFS.DiffIDs, diffID)
	}
	return describedBy(m, mediatype.OCIConfig, encode(cfg))
}

// describedBy returns the documents of a manifest with a config, for files in tars.
func describedBy(m ocispec.Manifest, configType string, config []byte) documents {
	m.Config = ocispec.Descriptor{MediaType: configType, Digest: digest.FromBytes(config), Size: int64(len(config))}
	return documents{encode(m), [][]byte{config}, func() ([]filetable.File, error) {
		return nil, errors.New("files in tars have no digests")
	}}
}

package carton

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
)

// parallelSizes limits the simultaneous requests for sizes.
const parallelSizes = 4

// Model returns the model. It requests the sizes of files that are only in LINKS. The model depends
// on MANIFEST and its files, not on the layout of the archive or on LINKS.
func (c *Carton) Model(ctx context.Context) (*convert.Model, error) {
	sizes, err := c.sizes(ctx)
	if err != nil {
		return nil, err
	}
	var files []filetable.File
	for _, e := range c.entries {
		size := sizes[e.Digest]
		if size == 0 {
			if err := verify.Bytes(e.Digest, nil); err != nil {
				return nil, fmt.Errorf("%q is empty: %w", e.Path, err)
			}
		}
		files = append(files, filetable.File{
			Path: e.Path, Type: filetable.TypeReg, Mode: fileMode, Size: size, Digest: e.Digest,
			Source: &filetable.Source{Blob: e.Digest, Size: size},
		})
	}
	return c.model(files)
}

// model returns the model of regular files, without their places. Blobs have the index of their
// file as layer.
func (c *Carton) model(files []filetable.File) (*convert.Model, error) {
	m := &convert.Model{
		Table: filetable.Table{
			Version: filetable.Version,
			Origin:  filetable.Origin{Format: string(mediatype.FormatCarton), Digest: c.hash, Mapping: convert.MappingVersion},
		},
		Config: c.info.Config,
		Runner: shortFacts(c.info.Runner),
	}
	m.Config.Descriptor.Revision = c.hash.Encoded()
	seen := map[digest.Digest]bool{}
	for i, f := range files {
		if f.Size == 0 { // there is nothing to download, and containerd refuses an empty layer
			f = inline(f.Path, nil)
		}
		m.Table.Files = append(m.Table.Files, f)
		if f.Source.Blob == "" || seen[f.Digest] {
			continue
		}
		seen[f.Digest] = true
		k := kind(f.Path)
		m.Table.Blobs = append(m.Table.Blobs, filetable.Blob{Digest: f.Digest, Size: f.Size, Layer: i})
		m.Layers = append(m.Layers, convert.Layer{
			Desc:      ocispec.Descriptor{Digest: f.Digest, Size: f.Size}, // a carton has no media types
			Kind:      k,
			Path:      f.Path,
			MediaType: mediatype.Layer(mediatype.FormatModelPack, k, filetable.ArchiveNone, filetable.CodecNone),
		})
		m.Config.ModelFS.DiffIDs = append(m.Config.ModelFS.DiffIDs, f.Digest)
	}
	m.Table.Files = append(m.Table.Files, inline(nameManifest, c.manifest))
	slices.SortFunc(m.Table.Files, func(a, b filetable.File) int { return strings.Compare(a.Path, b.Path) })
	return m, m.Table.Validate()
}

// fileMode is the mode of all files; writers of cartons do not set one.
const fileMode = 0o644

func inline(name string, p []byte) filetable.File {
	return filetable.File{
		Path: name, Type: filetable.TypeReg, Mode: fileMode, Size: int64(len(p)), Digest: digest.FromBytes(p),
		Source: &filetable.Source{Inline: p},
	}
}

// sizes returns the sizes of all files by digest.
func (c *Carton) sizes(ctx context.Context) (map[digest.Digest]int64, error) {
	var mu sync.Mutex
	all := make(map[digest.Digest]int64, len(c.places))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelSizes)
	for _, d := range slices.Sorted(maps.Keys(c.places)) { // in a stable order
		g.Go(func() error {
			size, err := c.size(ctx, d)
			mu.Lock()
			defer mu.Unlock()
			all[d] = size
			return err
		})
	}
	return all, g.Wait()
}

// kind returns the kind of a file.
func kind(p string) mediatype.Kind {
	switch {
	case p == nameInfo, p == nameIndex:
		return mediatype.KindWeightConfig
	case strings.HasPrefix(p, dirTensors):
		return mediatype.KindDataset
	case strings.HasPrefix(p, dirMisc):
		return mediatype.KindDoc
	case !strings.HasPrefix(p, dirModel):
		return convert.KindByPath(p)
	}
	switch strings.ToLower(path.Ext(p)) {
	case ".json", ".txt", ".toml", ".model":
		return mediatype.KindWeightConfig
	case ".py":
		return mediatype.KindCode
	}
	return mediatype.KindWeight
}

// maxFact limits a fact about a runner in an annotation of an image, in bytes.
const maxFact = 1024

// shortFacts returns the facts about a runner except those that are too long.
func shortFacts(r convert.Runner) convert.Runner {
	if len(r.Name) > maxFact {
		r.Name = ""
	}
	if len(r.FrameworkVersion) > maxFact {
		r.FrameworkVersion = ""
	}
	if len(strings.Join(r.Platforms, ",")) > maxFact {
		r.Platforms = nil
	}
	return r
}

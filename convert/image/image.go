package image

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Limits of blob layers. containerd keeps a snapshot for each blob layer, which takes milliseconds,
// and puts the digests of all layers into labels, so a model with very many blobs cannot have one
// layer for each. Once some blobs have no layer, sizes and copies of the image are incomplete
// anyway, and only the largest are worth the time.
const (
	maxBlobLayers = 256 // of a model whose blobs all have one
	fewBlobLayers = 32  // of other models
)

// maxLabel limits key and value of an annotation, in bytes together, if it may become a label.
// https://github.com/containerd/containerd/blob/v2.4.2/pkg/labels/validate.go
const maxLabel = 4096

// The platform of converted images.
const (
	os           = "linux"
	architecture = "amd64"
)

// An Image is a converted image.
type Image struct {
	Manifest []byte
	Config   []byte
	Table    []byte // the encoded file table, the content of the last layer

	Digest       digest.Digest // of Manifest
	ConfigDigest digest.Digest
	TableDigest  digest.Digest
}

// config is an OCI image config and a ModelPack config.
type config struct {
	Architecture string                  `json:"architecture"`
	OS           string                  `json:"os"`
	RootFS       ocispec.RootFS          `json:"rootfs"`
	Descriptor   convert.ModelDescriptor `json:"descriptor"`
	ModelFS      convert.ModelFS         `json:"modelfs"`
	Config       convert.ModelConfig     `json:"config"`
	Origin       *convert.Documents      `json:"dev.ballast.origin,omitempty"`
}

// Build builds the image of a model. It returns errdefs.ErrInvalidArgument if the table of the
// model is invalid.
func Build(m *convert.Model) (*Image, error) {
	if len(m.Layers) != len(m.Table.Blobs) {
		return nil, fmt.Errorf("model has %d layers and %d blobs: %w", len(m.Layers), len(m.Table.Blobs), errdefs.ErrInvalidArgument)
	}
	var im Image
	var err error
	if im.Table, err = m.Table.Encode(); err != nil {
		return nil, err
	}
	if len(im.Table) > filetable.MaxSize {
		return nil, fmt.Errorf("file table of %d bytes, more than %d: %w", len(im.Table), filetable.MaxSize, errdefs.ErrInvalidArgument)
	}
	im.TableDigest = digest.FromBytes(im.Table)

	layers := blobLayers(m)
	cfg := config{
		Architecture: architecture,
		OS:           os,
		RootFS:       ocispec.RootFS{Type: "layers"},
		Descriptor:   m.Config.Descriptor,
		ModelFS:      convert.ModelFS{Type: "layers"},
		Config:       m.Config.Config,
		Origin:       keep(m),
	}
	var descs []ocispec.Descriptor
	for _, l := range layers {
		cfg.RootFS.DiffIDs = append(cfg.RootFS.DiffIDs, filetable.BlobDiffID(l.desc.Digest))
		cfg.ModelFS.DiffIDs = append(cfg.ModelFS.DiffIDs, l.diffID)
		descs = append(descs, l.desc)
	}
	cfg.RootFS.DiffIDs = append(cfg.RootFS.DiffIDs, im.TableDigest)
	cfg.ModelFS.DiffIDs = append(cfg.ModelFS.DiffIDs, im.TableDigest)
	if im.Config, err = json.Marshal(cfg); err != nil {
		return nil, fmt.Errorf("encode config: %w", err)
	}
	im.ConfigDigest = digest.FromBytes(im.Config)

	im.Manifest, err = json.Marshal(ocispec.Manifest{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    mediatype.OCIManifest,
		ArtifactType: mediatype.ModelPackManifest,
		Config:       ocispec.Descriptor{MediaType: mediatype.OCIConfig, Digest: im.ConfigDigest, Size: int64(len(im.Config))},
		Layers:       append(descs, tableLayer(&im)),
		Annotations:  annotations(m),
	})
	if err != nil {
		return nil, fmt.Errorf("encode manifest: %w", err)
	}
	im.Digest = digest.FromBytes(im.Manifest)
	return &im, nil
}

func annotations(m *convert.Model) map[string]string {
	a := Origin(m.Table.Origin)
	Annotate(a, m.ContextLength, m.Runner)
	return a
}

func tableLayer(im *Image) ocispec.Descriptor {
	return ocispec.Descriptor{
		MediaType:   mediatype.TableLayer,
		Digest:      im.TableDigest,
		Size:        int64(len(im.Table)),
		Annotations: map[string]string{mediatype.AnnotationSnapshotTable: im.TableDigest.String()},
	}
}

// blobLayer is a layer for a blob of the origin.
type blobLayer struct {
	desc   ocispec.Descriptor
	diffID digest.Digest // as defined by ModelPack; the digest of the blob if unknown
}

// blobLayers returns the blob layers in the order of the origin, only the largest if there would be
// too many. Empty blobs get none, because containerd refuses them.
func blobLayers(m *convert.Model) []blobLayer {
	keep := make([]int, 0, len(m.Layers))
	for i, l := range m.Layers {
		if l.Desc.Size > 0 {
			keep = append(keep, i)
		}
	}
	if len(keep) > maxBlobLayers {
		slices.SortStableFunc(keep, func(a, b int) int { return cmp.Compare(m.Layers[b].Desc.Size, m.Layers[a].Desc.Size) })
		keep = keep[:fewBlobLayers]
		slices.Sort(keep)
	}
	layers := make([]blobLayer, 0, len(keep))
	for _, i := range keep {
		l, blob := m.Layers[i], m.Table.Blobs[i]
		a := map[string]string{}
		annotate(a, mediatype.AnnotationSnapshotBlob, blob.Digest.String())
		annotate(a, mediatype.AnnotationLayerType, l.MediaType)
		annotate(a, mediatype.AnnotationOriginType, l.Desc.MediaType)
		annotate(a, mediatype.AnnotationFilepath, l.Path)
		for _, key := range mediatype.TOCKeys {
			annotate(a, key, l.Desc.Annotations[key])
		}
		layers = append(layers, blobLayer{
			desc:   ocispec.Descriptor{MediaType: mediatype.BlobLayer, Digest: blob.Digest, Size: blob.Size, Annotations: a},
			diffID: cmp.Or(blob.DiffID, blob.Digest),
		})
	}
	return layers
}

// annotate sets an annotation, unless it is empty or too long.
func annotate(a map[string]string, key, value string) {
	if value != "" && len(key)+len(value) <= maxLabel {
		a[key] = value
	}
}

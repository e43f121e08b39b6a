package convert

import (
	"context"
	"errors"
	"io"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// MappingVersion is the version of the rules that convert an origin to a file table and an image.
// The same origin and version give the same bytes on every node, so any change of those bytes needs
// a new version once there is a release.
const MappingVersion = 1

// An Artifact is an upstream artifact: its manifest, and access to its blobs. Its methods are safe
// for concurrent use.
type Artifact interface {
	// Manifest returns the manifest, byte for byte as served.
	Manifest() []byte

	// ReadBlob reads and verifies a small blob. It returns errdefs.ErrInvalidArgument if the blob
	// is larger than limit bytes, and a *verify.Error if its bytes are wrong.
	ReadBlob(ctx context.Context, desc ocispec.Descriptor, limit int64) ([]byte, error)

	// BlobAt returns a reader for ranges of a blob, NOT verified, to index an archive.
	BlobAt(ctx context.Context, desc ocispec.Descriptor) (io.ReaderAt, error)
}

// ErrNotModel reports that an artifact is not a model, but an image, an index or another artifact
// that passes unchanged.
var ErrNotModel = errors.New("not a model")

// ReadBlob reads and verifies a small blob; see Artifact.ReadBlob. It uses the copy in the manifest
// if there is one, otherwise it calls a.
func ReadBlob(ctx context.Context, a Artifact, d Descriptor, limit int64) ([]byte, error) {
	if d.Data != nil && d.Size <= limit {
		return d.Data, nil
	}
	return a.ReadBlob(ctx, d.Descriptor, limit)
}

// A Model is the result of parsing, independent of the format: a file table, the metadata, and the
// layers of the origin.
type Model struct {
	Table  filetable.Table
	Config Config

	// Layers are the blobs of the origin that files come from, in the order of its manifest, each
	// digest once. They match Table.Blobs one to one.
	Layers []Layer

	// ContextLength is the context length of the model in tokens, zero if the origin does not have
	// it.
	ContextLength int64

	Runner Runner

	Documents Documents
}

// A Runner describes what runs a model, according to its origin; zero if unknown. ModelPack has no
// place for it.
type Runner struct {
	Name             string   `json:"name,omitempty"`
	FrameworkVersion string   `json:"frameworkVersion,omitempty"` // a requirement on a semantic version
	Platforms        []string `json:"platforms,omitempty"`        // target triples; none means any
}

// Documents are the documents of an origin, byte for byte. They preserve what has no place in a
// ModelPack config.
type Documents struct {
	// Manifest is the document whose digest is Origin.Digest of the table.
	Manifest []byte `json:"manifest,omitempty"`

	// Child is the manifest of the model in a list; nil if Manifest is not a list.
	Child []byte `json:"child,omitempty"`

	// Config is nil if the origin has none.
	Config []byte `json:"config,omitempty"`
}

// Layer is a layer of the origin with its meaning.
type Layer struct {
	// Desc is the descriptor in the origin.
	Desc ocispec.Descriptor

	// Kind is the kind of content as defined by ModelPack.
	Kind mediatype.Kind

	// Path is the path of the file, or the directory of the archive; may be empty.
	Path string

	// MediaType is the ModelPack media type of the layer in the converted model.
	MediaType string
}

package convert

import (
	"context"
	"io"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// MappingVersion is the version of the rules that turn an origin into a file table and an
// image. The same origin and the same version give the same bytes on every node, so any
// change of those bytes needs a new version. Images of earlier versions are read as those of this one.
//
//	2  the documents of the origin are in the image
//	3  of more than 256 blobs, 32 are layers and not 256; the layers of early CNAI are stacked, named
//	   templates of Ollama are not the default, weights without a path have names
const MappingVersion = 3

// An Artifact is one upstream artifact: its manifest, and access to its blobs. Its methods are
// safe for concurrent use.
type Artifact interface {
	// Manifest returns the manifest, byte for byte as served.
	Manifest() []byte

	// ReadBlob reads a small blob whole and verified. It returns
	// errdefs.ErrInvalidArgument if the blob is larger than limit bytes, and a
	// *verify.Error if its bytes are wrong.
	ReadBlob(ctx context.Context, desc ocispec.Descriptor, limit int64) ([]byte, error)

	// BlobAt returns ranged reads of a blob that are NOT verified, to index an archive.
	BlobAt(ctx context.Context, desc ocispec.Descriptor) (io.ReaderAt, error)
}

// A Parser turns the artifacts of one format into a Model. It reads the manifest, the
// config, small text layers and archive headers, never weights. m is the parsed manifest of a.
type Parser func(ctx context.Context, a Artifact, m *Manifest) (*Model, error)

// Parsers has a Parser for each format that is understood.
type Parsers map[mediatype.Format]Parser

// A Model is the neutral result of parsing: a file table, the metadata, and how the layers
// of the origin looked.
type Model struct {
	Table  filetable.Table
	Config Config

	// Layers are the blobs of the origin that files come from, in the order of its
	// manifest, each digest once. They match Table.Blobs one to one.
	Layers []Layer

	// ContextLength is the number of tokens that the model can have in mind, zero if the origin
	// does not say it.
	ContextLength int64

	Runner Runner

	Documents Documents
}

// A Runner is what runs a model, as its origin says; zero if it does not. ModelPack has no place for it.
type Runner struct {
	Name             string   `json:"name,omitempty"`
	FrameworkVersion string   `json:"frameworkVersion,omitempty"` // a requirement on a semantic version
	Platforms        []string `json:"platforms,omitempty"`        // target triples; none means any
}

// Documents are the documents of an origin, byte for byte. What of them has no place in a
// ModelPack config is in them still.
type Documents struct {
	// Manifest is what Origin.Digest of the table is the digest of.
	Manifest []byte `json:"manifest,omitempty"`

	// Child is the manifest of the model in a list; nil if Manifest is no list.
	Child []byte `json:"child,omitempty"`

	// Config is nil if the origin has none.
	Config []byte `json:"config,omitempty"`
}

// Layer is a layer of the origin, with what it means.
type Layer struct {
	// Desc is the descriptor as the origin gives it.
	Desc ocispec.Descriptor

	// Kind is the kind of content in the terms of ModelPack.
	Kind mediatype.Kind

	// Path is the path of the file, or the directory of the archive; can be empty.
	Path string

	// MediaType is the ModelPack media type that the layer has in the converted model.
	MediaType string
}

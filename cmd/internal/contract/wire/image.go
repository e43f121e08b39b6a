package wire

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A Record is what the store has recorded about a converted image.
type Record struct {
	Manifest digest.Digest `json:"digest"` // of the converted image; empty if only the table is known
	Config   digest.Digest `json:"config"`
	Table    digest.Digest `json:"table"` // empty for an index
	Origin   Origin        `json:"origin"`

	// Ahead is set for an image that was converted before it was pushed, and for an index of such images.
	Ahead bool `json:"ahead,omitempty"`

	// Refs are the references it was resolved from, "host/repository:tag" or "host/repository@digest", sorted.
	Refs []string `json:"refs"`

	// Size is the total size of the model's files as far as known, in bytes.
	Size int64 `json:"size"`

	// PrivateNames are the names ("host/repository") from which the origin could be read only with
	// credentials of the caller, sorted.
	PrivateNames []string `json:"privateNames,omitempty"`

	// Read has those of the private names from which a caller of the facade has read the origin with
	// credentials of its own, with the last time.
	Read map[string]time.Time `json:"read,omitempty"`

	// Imported are the Refs by which it was imported from an archive, sorted.
	Imported []string `json:"imported,omitempty"`

	Created time.Time `json:"created"`
	Used    time.Time `json:"used"`
}

// ID returns the digest by which the image is known: of its manifest, or of its table if the
// manifest is unknown.
func (r *Record) ID() digest.Digest { return cmp.Or(r.Manifest, r.Table) }

// Origin identifies what an image was converted from.
type Origin struct {
	Format  string        `json:"format"` // such as "ollama"
	Digest  digest.Digest `json:"digest"` // of the manifest, byte for byte as served
	Mapping int           `json:"mapping"`
	Prefix  string        `json:"prefix,omitempty"` // directory of the files in a mount
}

// A Share is the size of the existing files and documents of a model, in bytes.
type Share struct {
	Own    int64 `json:"own"`    // no other known model needs them
	Shared int64 `json:"shared"` // others do
}

// A Ref is a reference of the store, which protects the files of a model.
type Ref struct {
	Name    string        `json:"name"`
	Table   digest.Digest `json:"table"`
	Created time.Time     `json:"created"`
	Expires time.Time     `json:"expires,omitzero"` // zero means never

	// Sources are the names of the sources of the model for this reference.
	Sources []string `json:"sources,omitempty"`

	// Size and Inodes are what is attributed to this reference: each object counts for one reference.
	Size   int64 `json:"size,omitzero"`
	Inodes int64 `json:"inodes,omitzero"`
}

// Image is an image with its state.
type Image struct {
	Record

	// Sources are the repositories, "host/path", that an image without a reference was pulled from,
	// or the reference that it had.
	Sources []string `json:"sources,omitempty"`

	State ImageState `json:"state"`

	// Total and Completed are the bytes to download and those that are present, while State is
	// StatePulling or StateLazy.
	Total     int64 `json:"total,omitempty"`
	Completed int64 `json:"completed,omitempty"`

	// Rate is the growth of Completed in bytes per second, if known.
	Rate int64 `json:"rate,omitempty"`

	// Paused reports whether the rest is a background download and these are paused.
	Paused bool `json:"paused,omitempty"`

	// Early is how it is read before it is complete; empty if by its own chunk digests, or if it is not.
	Early string `json:"early,omitempty"`

	// Eager is why it is shown only when it is complete; empty if it can be read before, or is complete. Both are known
	// while State is StatePulling or StateLazy, and in Why also if nothing is being downloaded.
	Eager string `json:"eager,omitempty"`

	// Ends is when its download stops, unless a client waits for it before; zero if that is not so.
	Ends time.Time `json:"ends,omitzero"`

	// Error is why it cannot be shown if State is StateInvalid; what it has lost if it was complete; or why the last
	// attempt to download it failed, before the next one.
	Error *Error `json:"error,omitempty"`

	// Share is what it takes on the disk, if that was requested: "own" and "shared".
	*Share

	// Pins are the pins that protect it from garbage collection.
	Pins []Ref `json:"pins,omitempty"`

	// Snapshots is the number of snapshots that show it.
	Snapshots int `json:"snapshots"`
}

// An ImageState describes how much of an image is present.
type ImageState string

// The states of an Image.
const (
	StateComplete ImageState = "complete" // every file is present and verified; in a Detail by a reference, its repository has given them
	StatePartial  ImageState = "partial"  // something is missing and is not being downloaded
	StateAbsent   ImageState = "absent"   // none of its bytes are present, and it is not being downloaded
	StatePulling  ImageState = "pulling"  // it is being downloaded
	StateLazy     ImageState = "lazy"     // it is readable, and the rest is being downloaded
	StateInvalid  ImageState = "invalid"  // it cannot be shown; see Error
	StateIndex    ImageState = "index"    // it is a list of other images
	StateRemote   ImageState = "remote"   // it was looked at in its registry
)

// Why explains an image: what holds its files.
type Why struct {
	Image

	// Holders are what keeps its files on the node, and how that ends. Without any, a collection
	// removes them.
	Holders []Holder `json:"holders"`

	// Unknown is why the holders of containerd are unknown.
	Unknown *Error `json:"unknown,omitempty"`
}

// A Hold is a kind of Holder.
type Hold string

// The kinds of holders.
const (
	HoldPin       Hold = "pin"
	HoldMount     Hold = "mount"    // on the host
	HoldDownload  Hold = "download" // or another job
	HoldImage     Hold = "image"    // of containerd
	HoldContainer Hold = "container"
	HoldVolume    Hold = "volume" // an image volume of a pod
	HoldLease     Hold = "lease"
	HoldSnapshot  Hold = "snapshot" // of nothing else that is known
)

// A Holder keeps the files of a model.
type Holder struct {
	Kind      Hold      `json:"kind"`
	Name      string    `json:"name"`
	Namespace string    `json:"namespace,omitempty"` // of containerd
	Expires   time.Time `json:"expires,omitzero"`    // it ends then
	End       string    `json:"end"`                 // the command that ends it, or what does
}

// Detail describes one image in full.
type Detail struct {
	Image

	// Files are the files as shown if the image is complete, otherwise as far as they are known.
	Files []File `json:"files"`

	// Blobs are the blobs of the origin.
	Blobs []Blob `json:"blobs"`

	// ConfigJSON is the config of the converted image.
	ConfigJSON json.RawMessage `json:"configJSON,omitempty"`

	// Description describes the model; nil for an index.
	Description *Description `json:"description,omitempty"`

	// Chunks describes which files have chunk digests; nil if none do.
	Chunks *ChunkUse `json:"chunks,omitempty"`

	// Losses are the facts of the origin that the ModelPack config, files and annotations of the
	// image do not have.
	Losses []Loss `json:"losses,omitempty"`

	// Signatures are the results of the rules for the names of the image.
	Signatures []SignatureResult `json:"signatures,omitempty"`

	// Documents are the documents of the origin, byte for byte, if the image has them.
	Documents *Documents `json:"documents,omitempty"`
}

// OriginDocument returns a document of the origin of an image, byte for byte. which is "manifest",
// "config", or "child" for the manifest chosen from an index. It returns errdefs.ErrNotFound if the
// image does not have it, and errdefs.ErrInvalidArgument for another name.
func (d *Detail) OriginDocument(which string) ([]byte, error) {
	docs := d.Documents
	if docs == nil {
		docs = &Documents{}
	}
	p, ok := map[string][]byte{"manifest": docs.Manifest, "config": docs.Config, "child": docs.Child}[which]
	switch {
	case !ok:
		return nil, fmt.Errorf("%q is not one of manifest, config, child: %w", which, errdefs.ErrInvalidArgument)
	case p == nil:
		return nil, fmt.Errorf("the image has no %s of the origin: %w", which, errdefs.ErrNotFound)
	}
	return p, nil
}

// The types of a File.
const (
	TypeReg     = "reg"
	TypeDir     = "dir"
	TypeSymlink = "symlink"
)

// A File is a file, directory or symbolic link of a model.
type File struct {
	Path    string        `json:"name"` // relative, slash-separated
	Type    string        `json:"type"` // TypeReg, TypeDir or TypeSymlink
	Mode    uint32        `json:"mode"` // permission bits
	UID     uint32        `json:"uid,omitempty"`
	GID     uint32        `json:"gid,omitempty"`
	ModTime time.Time     `json:"modtime,omitzero"`
	Size    int64         `json:"size,omitempty"`
	Digest  digest.Digest `json:"digest,omitempty"`   // empty if it is not yet known
	Target  string        `json:"linkName,omitempty"` // of a symbolic link
	Layer   int           `json:"layer,omitempty"`    // of a model in layers; 0 is the lowest
}

// A Blob is a blob of the origin.
type Blob struct {
	Digest  digest.Digest `json:"digest"`
	Size    int64         `json:"size"` // bytes as transferred
	Archive string        `json:"archive,omitempty"`
	Codec   string        `json:"codec,omitempty"`
	DiffID  digest.Digest `json:"diffID,omitempty"`
	Index   digest.Digest `json:"index,omitempty"` // of the members of a tar whose headers were read before
	Layer   int           `json:"layer"`           // in the manifest of the origin
}

// A Description describes a model by the facts of its origin and, where the origin has none, by
// those of the headers of its files. The config of the image has only the former: it is derived
// from the origin, before any file is downloaded.
type Description struct {
	Descriptor    ModelDescriptor `json:"descriptor"`
	Config        ModelConfig     `json:"config"`
	ContextLength int64           `json:"contextLength,omitempty"` // tokens
	Runner        Runner          `json:"runner,omitzero"`

	// FromHeaders are the names of the members taken from the headers of files.
	FromHeaders []string `json:"fromHeaders,omitempty"`

	// Unreadable are headers that cannot be read. The description then relies on the origin.
	Unreadable []HeaderProblem `json:"unreadable,omitempty"`
}

// ModelDescriptor, ModelConfig and Capabilities are the members of a ModelPack config.
// https://github.com/modelpack/model-spec/blob/v0.0.7/docs/config.md
type (
	ModelDescriptor struct {
		CreatedAt   string   `json:"createdAt,omitempty"` // RFC 3339
		Authors     []string `json:"authors,omitempty"`
		Vendor      string   `json:"vendor,omitempty"`
		Family      string   `json:"family,omitempty"`
		Name        string   `json:"name,omitempty"`
		Version     string   `json:"version,omitempty"`
		Title       string   `json:"title,omitempty"`
		Description string   `json:"description,omitempty"`
		DocURL      string   `json:"docURL,omitempty"`
		SourceURL   string   `json:"sourceURL,omitempty"`
		DatasetsURL []string `json:"datasetsURL,omitempty"`
		Revision    string   `json:"revision,omitempty"`
		Licenses    []string `json:"licenses,omitempty"` // SPDX expressions
	}
	ModelConfig struct {
		Architecture string        `json:"architecture,omitempty"`
		Format       string        `json:"format,omitempty"`
		ParamSize    string        `json:"paramSize,omitempty"` // such as "6.7B"
		Precision    string        `json:"precision,omitempty"`
		Quantization string        `json:"quantization,omitempty"`
		Capabilities *Capabilities `json:"capabilities,omitempty"`
	}
	Capabilities struct {
		InputTypes      []string `json:"inputTypes,omitempty"`
		OutputTypes     []string `json:"outputTypes,omitempty"`
		KnowledgeCutoff string   `json:"knowledgeCutoff,omitempty"` // RFC 3339
		Reasoning       *bool    `json:"reasoning,omitempty"`
		ToolUsage       *bool    `json:"toolUsage,omitempty"`
		Reward          *bool    `json:"reward,omitempty"`
		Languages       []string `json:"languages,omitempty"`
	}
)

// A Runner is what runs a model, if the origin says so.
type Runner struct {
	Name             string   `json:"name,omitempty"`
	FrameworkVersion string   `json:"frameworkVersion,omitempty"` // a requirement on a semantic version
	Platforms        []string `json:"platforms,omitempty"`        // target triples; none means any
}

// A HeaderProblem is why the header of a file cannot be read.
type HeaderProblem struct {
	Path string `json:"path"`
	Text string `json:"text"`
}

// ChunkUse reports how many chunks of a model are shared.
type ChunkUse struct {
	Chunks int   `json:"chunks"` // chunks with a digest, without duplicates
	Bytes  int64 `json:"bytes"`  // their size
	Shared int64 `json:"shared"` // size of those that other objects on the node contain
}

// A Loss is a fact of the origin that the converted image does not have in ModelPack's members.
type Loss struct {
	What string `json:"what"`
	Kept string `json:"kept,omitempty"` // where it is kept; empty if it is lost
}

// Documents are the documents of an origin, byte for byte.
type Documents struct {
	Manifest []byte `json:"manifest,omitempty"` // its digest is that of the Origin
	Child    []byte `json:"child,omitempty"`    // the manifest of the model, if Manifest is a list
	Config   []byte `json:"config,omitempty"`
}

// A SignatureResult is the result of a rule for signatures.
type SignatureResult struct {
	Rule    string         `json:"rule"`
	Mode    string         `json:"mode"` // "warn" or "enforce"
	State   SignatureState `json:"state"`
	Signers []string       `json:"signers,omitempty"` // if accepted
	Reasons []string       `json:"reasons,omitempty"` // otherwise
	Kept    time.Time      `json:"kept,omitzero"`     // the time of the check, if the result is stored from before
}

// A SignatureState is what a rule says of a model.
type SignatureState string

// The states of a SignatureResult.
const (
	SignatureAccepted SignatureState = "accepted"
	SignatureRefused  SignatureState = "refused"
	SignaturePending  SignatureState = "pending" // checked again when the model is complete
	SignatureFailed   SignatureState = "failed"  // unknown, for example because a registry does not answer
)

// Signatures is the result of checking the signatures of a reference.
type Signatures struct {
	Ref    string        `json:"ref"`
	Origin digest.Digest `json:"origin"` // of the content of the registry

	// Results has one result for each rule for the reference. Without a rule, Found describes its signatures,
	// which are not checked.
	Results []SignatureResult `json:"results"`
	Found   []string          `json:"found,omitempty"`
}

package api

import (
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
)

// ImportRequest requests the import of a model from an Ollama store on this machine.
type ImportRequest struct {
	// Dir is the absolute path of the models directory as seen by the daemon. It is only read.
	Dir string `json:"dir"`

	Model string `json:"model,omitempty"` // as Ollama users write it

	// NoPin and TTL are as in PrefetchRequest.
	NoPin bool          `json:"noPin,omitempty"`
	TTL   time.Duration `json:"ttl,omitempty"`
}

// LocalModel is a model in an Ollama store.
type LocalModel struct {
	Name string `json:"name"` // as Ollama users write it
	Ref  string `json:"ref"`  // the reference in its registry
}

// ImportPlan describes what an import would do.
type ImportPlan struct {
	LocalModel
	Manifest digest.Digest    `json:"manifest"` // of the converted image
	Origin   filetable.Origin `json:"origin"`
	Size     int64            `json:"size"` // size of the blobs in bytes
	Blobs    []ImportBlob     `json:"blobs"`
}

// ImportBlob is a blob of an ImportPlan.
type ImportBlob struct {
	Digest digest.Digest `json:"digest"`
	Size   int64         `json:"size"`
	File   string        `json:"file,omitempty"` // the path of a file with bytes of it

	// State is "present", store.LinkClone, store.LinkHard or store.LinkNone.
	State string `json:"state"`
}

// ImportEvent is a line of an import.
type ImportEvent struct {
	Event

	// Linked is the number of bytes imported without a copy. It is in the last line.
	Linked *store.Linked `json:"linked,omitempty"`
}

package format

import (
	"context"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/store/transfer"
)

// A Place has models that are not in a registry.
type Place struct {
	// Takes reports whether a name can be a model of this place.
	Takes func(n Name) bool

	// Open opens the model with a name. It returns a *NameError for an invalid name.
	Open func(ctx context.Context, s Settings, name string) (*Source, error)
}

// A Name is a name typed by a user that is not a URL.
type Name struct {
	Text        string
	IsPath      bool // an existing or intended file, and not a reference
	IsReference bool // it is, or can be, a reference
}

// A Source is an open model.
type Source struct {
	// Artifact is the artifact to parse; nil if Model is known.
	Artifact convert.Artifact
	Model    *convert.Model

	// Fetcher reads the blobs. It is not trusted.
	Fetcher transfer.Fetcher

	// Losses are facts that are already left out.
	Losses []string

	// Problems are what is wrong with the files, as far as their parsers know.
	Problems []string

	// Pointers are the paths of files that have only the address of their content (Git LFS).
	Pointers []string

	// Describe fills in the facts in the headers of the files of a model, which are some of Model, and returns what
	// is wrong with them; nil if the facts come from elsewhere.
	Describe func(ctx context.Context, m *convert.Model) (problems []string)

	// Explain adds advice to an error of the model; may be nil.
	Explain func(error) error

	// Close releases the source; may be nil.
	Close func() error
}

// Opened returns the source of an archive, and closes the archive on an error. err is the result of
// opening it.
func Opened(ctx context.Context, a Archive, err error) (*Source, error) {
	if err != nil {
		return nil, err
	}
	m, err := a.Model(ctx)
	if err != nil {
		a.Close() // it was only read
		return nil, &ArtifactError{err}
	}
	return &Source{Model: m, Fetcher: a.Fetcher(), Close: a.Close}, nil
}

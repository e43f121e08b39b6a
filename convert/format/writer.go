package format

import (
	"context"
	"io"

	"github.com/ballast-dev/ballast/convert"
	"github.com/opencontainers/go-digest"
)

// A Writer writes models in a format in which a model is one file.
type Writer struct {
	Extension string // of the file

	// FromFiles returns the model that results from packing a model whose files are blobs. It has
	// the same blobs, so a holder of the model's bytes has those of the result.
	FromFiles func(m *convert.Model, f Facts) (*convert.Model, error)

	// Pack writes files unchanged, and returns the digest that identifies the result. Without
	// facts, the files are already those of a model of this format.
	Pack func(ctx context.Context, w io.Writer, files []File, cfg convert.Config, f Facts) (digest.Digest, error)
}

// Facts are facts that a format requires and that a model does not have. The zero value stands for
// no facts.
type Facts struct {
	Runner    string // its name
	Framework string // a requirement on a semantic version
}

// A File is a file to pack.
type File struct {
	Path   string
	Size   int64 // in bytes
	Digest digest.Digest
	Open   func(ctx context.Context) (io.ReadCloser, error)
}

// Writers returns the formats that have a Writer.
func (l List) Writers() (all List) {
	for _, f := range l {
		if f.Writer != nil {
			all = append(all, f)
		}
	}
	return all
}

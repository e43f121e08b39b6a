package wire

import (
	"context"
	"net/http"
	"net/url"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Recorded is the order in which a model is first read.
type Recorded struct {
	Image ocispec.Descriptor `json:"image"` // the manifest of the converted image
	Order Order              `json:"order"`
}

// An Order is the order in which the parts of a model are first read.
type Order struct {
	Version int     `json:"version"`
	Ranges  []Range `json:"ranges"`
}

// A Range is a part of a file.
type Range struct {
	Path   string `json:"path"`   // of the file
	Offset int64  `json:"offset"` // bytes
	Size   int64  `json:"size"`   // bytes
}

// Order returns the order in which a model is first read by those who pulled it from the repository of a reference.
// It returns errdefs.ErrNotFound if no read is known.
func (c *Client) Order(ctx context.Context, ref string) (v Recorded, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/order?name="+url.QueryEscape(ref), nil, &v)
}

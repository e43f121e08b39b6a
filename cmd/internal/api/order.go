package api

import (
	"context"
	"net/http"
	"net/url"

	"github.com/ballast-dev/ballast/store/filetable"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Recorded is the order in which a model is first read.
type Recorded struct {
	Image ocispec.Descriptor `json:"image"` // the manifest of the converted image
	Order filetable.Order    `json:"order"`
}

// Order returns the order in which the model called name is first read. It returns errdefs.ErrNotFound if no read is known.
func (c *Client) Order(ctx context.Context, name string) (v Recorded, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/order?name="+url.QueryEscape(name), nil, &v)
}

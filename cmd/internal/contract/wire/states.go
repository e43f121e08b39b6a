package wire

import (
	"context"
	"net/http"
	"net/url"

	"github.com/opencontainers/go-digest"
)

// HashStates are the states of sha256 of a large file of a model.
type HashStates struct {
	Path   string        `json:"path"`
	Digest digest.Digest `json:"digest"`
	Size   int64         `json:"size"`             // bytes
	States []byte        `json:"states,omitempty"` // 32 bytes after each 4 MiB, but not at the end; base64
}

// HashStates returns the large files without chunk digests of a model, without their states.
func (c *Client) HashStates(ctx context.Context, ref string) (all []HashStates, err error) {
	return all, c.call(ctx, http.MethodGet, "/v1/states?name="+url.QueryEscape(ref), nil, &all)
}

// HashStatesOf returns the states of one of these files. It can take as long as hashing the file, and returns
// errdefs.ErrNotFound if that is not complete.
func (c *Client) HashStatesOf(ctx context.Context, ref string, blob digest.Digest) (v HashStates, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/states?name="+url.QueryEscape(ref)+"&blob="+url.QueryEscape(blob.String()), nil, &v)
}

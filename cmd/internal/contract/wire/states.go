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
	States []byte        `json:"states,omitempty"` // 32 bytes after 256 KiB and after each 4 MiB, but not at the end; base64
}

// HashStatesRequest requests the states of a file of a model.
type HashStatesRequest struct {
	Name string        `json:"name"`
	Blob digest.Digest `json:"blob"`
}

// HashStatesEvent is a line while a file is hashed. The last one has its states or an error.
type HashStatesEvent struct {
	Event
	States *HashStates `json:"states,omitempty"`
}

// HashStates returns the large files without chunk digests of a model, without their states.
func (c *Client) HashStates(ctx context.Context, ref string) (all []HashStates, err error) {
	return all, c.call(ctx, http.MethodGet, "/v1/states?name="+url.QueryEscape(ref), nil, &all)
}

// HashStatesOf returns the states of one of these files, and calls event while it is hashed, if they were not kept. It
// returns errdefs.ErrNotFound if the file is not complete.
func (c *Client) HashStatesOf(ctx context.Context, r HashStatesRequest, event func(Event)) (HashStates, error) {
	last, err := readStream(ctx, c, "/v1/states", r, func(e HashStatesEvent) { event(e.Event) }, HashStatesEvent.end)
	if err != nil {
		return HashStates{}, err
	}
	return *last.States, nil
}

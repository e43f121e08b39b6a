package admin

import (
	"context"
	"net/http"
	"net/url"

	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/ballast-dev/ballast/store"
	"github.com/opencontainers/go-digest"
)

// Signatures is what checking a reference came to.
type Signatures struct {
	Ref    string        `json:"ref"`
	Origin digest.Digest `json:"origin"` // of what the registry has

	// Results has one for each rule for the reference; none if there is no such rule.
	Results []signature.Result `json:"results"`
}

// checkSignatures answers what is known of the signatures of a reference.
func (h *Handler) checkSignatures(r *http.Request) (any, error) {
	return h.CheckSignatures(r.Context(), r.FormValue("name"))
}

// signers adds to d what is known of who signed it.
func (h *Handler) signers(ctx context.Context, d *Detail, im store.Image) error {
	if h.Signers == nil {
		return nil
	}
	var err error
	d.Signatures, err = h.Signers(ctx, im)
	return err
}

// Signatures looks for the signatures of a reference, and says what the rules make of them.
func (c *Client) Signatures(ctx context.Context, ref string) (v Signatures, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/signatures?"+url.Values{"name": {ref}}.Encode(), nil, &v)
}

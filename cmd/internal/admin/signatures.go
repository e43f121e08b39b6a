package admin

import (
	"context"
	"net/http"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/ballast-dev/ballast/store"
)

// checkSignatures checks the signatures of a reference.
func (h *Handler) checkSignatures(r *http.Request) (any, error) {
	return h.CheckSignatures(r.Context(), r.FormValue("name"))
}

// signers adds the recorded signature results to d.
func (h *Handler) signers(ctx context.Context, d *api.Detail, im store.Image) error {
	if h.Signers == nil {
		return nil
	}
	var err error
	d.Signatures, err = h.Signers(ctx, im)
	return err
}

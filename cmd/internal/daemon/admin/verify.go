package admin

import (
	"context"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/translate"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/ballast-dev/ballast/store"
)

// verify compares objects and snapshots with their digests.
func (h *Handler) verify(ctx context.Context, req wire.VerifyRequest, out *lines) error {
	var name modelname.Name // zero: everything
	var im store.Image
	if req.Name != "" {
		var err error
		if name, err = modelname.Parse(req.Name); err != nil {
			return err
		}
		if im, err = h.findOne(name); err != nil {
			return err
		}
	}
	label := name.String()
	if name.Ref.URL != "" {
		label = name.Ref.Name() // a query can be a signature
	}
	progress, end := h.Care.Jobs.Verifying(wire.KindVerify, label)
	res, err := h.Care.Verify(ctx, im.Table, name.Ref, req.Repair, func(e wire.VerifyEvent) {
		progress(e.Completed, e.Total)
		_ = out.send(e)
	})
	end(err)
	if err != nil {
		return out.send(wire.VerifyEvent{Status: wire.StatusError, Result: res, Error: wire.Wrap(err)})
	}
	return out.send(wire.VerifyEvent{Status: wire.StatusSuccess, Result: res})
}

// signatures checks the signatures of a reference, for information.
func (h *Handler) signatures(ctx context.Context, name string) (wire.Signatures, error) {
	ref, err := resolve.ParseRef(name)
	if err != nil {
		return wire.Signatures{}, err
	}
	im, results, found, err := h.Facade.Checked(ctx, ref)
	return wire.Signatures{Ref: ref.String(), Origin: im.Origin.Digest, Results: translate.Signatures(results), Found: found}, err
}

// signers returns the recorded signature results of an image, by the rules for its names.
func (h *Handler) signers(im store.Image) ([]wire.SignatureResult, error) {
	if h.Facade == nil {
		return nil, nil
	}
	results, err := h.Facade.Signatures.Known(signature.Subject{Names: registry.Names(im), Image: im})
	return translate.Signatures(results), err
}

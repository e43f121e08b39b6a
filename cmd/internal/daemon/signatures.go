package daemon

import (
	"context"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/cmd/internal/upstream"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/ballast-dev/ballast/snapshotter/differ"
	"github.com/ballast-dev/ballast/store"
	"github.com/opencontainers/go-digest"
)

// watchSignatures makes the facade check signatures, if a rule says so.
func (d *Daemon) watchSignatures() error {
	rules, err := upstream.Rules(d.config)
	if err != nil || len(rules) == 0 {
		return err
	}
	d.facade.Signatures = &signature.Checker{
		Rules: rules, Store: d.store, Log: d.log,
		Count: func(m signature.Mode, s signature.State) { d.metrics.checked(m, s, 1) },
	}
	d.facade.Shown = func(ctx context.Context, table digest.Digest) (bool, error) {
		shown, err := d.background.shownIn(ctx, table)
		return len(shown) > 0, err
	}
	return nil
}

// signed checks the model of a table that is pulled from repositories before it is shown: see
// differ.Options.Check.
func (d *Daemon) signed(ctx context.Context, table digest.Digest, from []differ.Repository, complete bool) (pending bool, err error) {
	if d.facade.Signatures == nil {
		return false, nil
	}
	names := pulledNames(from, d.images(ctx, table))
	return d.facade.Admit(ctx, registry.Candidate{Table: table, Names: names, Complete: complete})
}

// checkSignatures checks what a reference names, for who wants to know.
func (d *Daemon) checkSignatures(ctx context.Context, name string) (admin.Signatures, error) {
	ref, err := resolve.ParseRef(name)
	if err != nil {
		return admin.Signatures{}, err
	}
	im, results, err := d.facade.Checked(ctx, ref)
	return admin.Signatures{Ref: ref.String(), Origin: im.Origin.Digest, Results: results}, err
}

// signers returns what is kept about who signed an image, by the rules for its names.
func (d *Daemon) signers(ctx context.Context, im store.Image) ([]signature.Result, error) {
	return d.facade.Signatures.Known(ctx, registry.Names(im), im.Table)
}

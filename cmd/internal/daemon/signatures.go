package daemon

import (
	"context"

	"github.com/ballast-dev/ballast/cmd/internal/door/upstream"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/ballast-dev/ballast/snapshotter/differ"
	"github.com/opencontainers/go-digest"
)

// watchSignatures makes the facade check signatures if a rule requires it.
func (d *Daemon) watchSignatures() error {
	rules, err := upstream.Rules(d.config)
	if err != nil || len(rules) == 0 {
		return err
	}
	d.facade.Signatures = &signature.Checker{
		Rules: rules, Store: d.store, Log: d.log, Count: d.metrics.Checked,
	}
	d.facade.ShownEarly = func(ctx context.Context, table digest.Digest) (bool, error) {
		return d.jobs.Background.ShowsEarly(table), nil
	}
	return nil
}

// signed checks the model of a table pulled from repositories before it is shown: see
// differ.Options.Check.
func (d *Daemon) signed(ctx context.Context, table digest.Digest, from []differ.Repository, complete bool) (pending bool, err error) {
	if d.facade.Signatures == nil {
		return false, nil
	}
	return d.facade.Admit(ctx, registry.Candidate{Table: table, Names: d.jobs.Sources.PulledNames(table, from), Complete: complete})
}

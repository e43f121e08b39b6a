package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/containerd/errdefs"
)

// signatures looks for the signatures of references and prints the results of the rules. It returns
// an error if one is refused, or has no rule.
func (a *app) signatures(ctx context.Context, cl *api.Client, ref string, out output) error {
	if _, err := resolve.ParseRef(ref); err != nil {
		return &usageError{err}
	}
	res, err := cl.Signatures(ctx, ref)
	if err != nil {
		return err
	}
	if err := a.show(out, res, nil, signatureRows(res.Results)); err != nil {
		return err
	}
	if len(res.Results) == 0 {
		return fmt.Errorf("%s: no [[verify.rule]] matches it, so nothing was checked; ballastd reads rules when it starts: %w", ref, errdefs.ErrFailedPrecondition)
	}
	for _, r := range res.Results {
		switch r.State {
		case signature.Refused:
			return fmt.Errorf("%s: rule %q does not let it pass: %w", ref, r.Rule, errdefs.ErrDataLoss)
		case signature.Failed:
			return fmt.Errorf("%s: its signatures cannot be looked for: %w", ref, errdefs.ErrUnavailable)
		}
	}
	return nil
}

// signatureRows returns table rows about signers.
func signatureRows(results []signature.Result) (rows [][]string) {
	for _, r := range results {
		about := r.Signers
		if r.State != signature.Accepted {
			about = r.Reasons
		}
		text := strings.Join(about, "; ")
		if !r.Kept.IsZero() {
			text += " (found " + ago(r.Kept) + ")"
		}
		rows = append(rows, []string{string(r.State), "rule " + r.Rule + ", " + string(r.Mode), text})
	}
	return rows
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/translate"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"
)

func (a *app) verifyCommand() *cobra.Command {
	var r wire.VerifyRequest
	var signatures bool
	var keys []string
	var id signature.SignerOptions
	c := &cobra.Command{
		Use:   "verify [REF|DIGEST]",
		Short: "compare models with their digests, and repair them",
		Long: `Read all files, or those of one model, and compare them with their digests. Also compare the files in
snapshots with their models. Damaged files are moved away at once and cannot be read until they are
downloaded again: by --repair, which also repairs the snapshots, by a pull, or by reading a model that is
not complete. Containers that have a damaged file open keep it until they close it.

With --signatures, find the signatures of REF on this node and in its registry instead, and show whether
the rules of the configuration accept them. Without a rule for REF, show who claims to have signed it. No weights
are read. With --key, one signature by one of these keys is required instead, of the files or of the manifest, and
neither ballastd nor root is needed: everything is read from the registry, with your credentials. --trusted-root,
--issuer and --subject require a keyless signature by this identity in the same way; the three belong together.`,
		Example: "  ballast verify --repair\n  ballast verify --signatures --key team.pub registry.example/team/model:v1\n" +
			"  ballast verify --signatures --trusted-root trusted_root.json --issuer https://accounts.google.com --subject release@team.example registry.example/team/model:v1",
		Args: modelNames(0, 1),

		ValidArgsFunction: a.completes(1, modelRefs),
	}
	out := outputFlag(c)
	c.Flags().BoolVar(&r.Repair, "repair", false, "download damaged and missing files again")
	c.Flags().BoolVar(&signatures, "signatures", false, "check the signatures of REF")
	c.Flags().StringSliceVar(&keys, "key", nil, "with --signatures: require a signature by this public key (PEM), without ballastd")
	c.Flags().StringVar(&id.TrustedRoot, "trusted-root", "", "with --signatures: require a keyless signature, verified by this trusted root (JSON), without ballastd")
	c.Flags().StringVar(&id.Issuer, "issuer", "", "with --trusted-root: who vouches for the subject, an issuer of OpenID Connect")
	c.Flags().StringVar(&id.Subject, "subject", "", "with --trusted-root: the signer, an email address or a URI")
	ofRules := a.asks(func(cmd *cobra.Command, cl *wire.Client, args []string) error {
		return a.signatures(cmd.Context(), cl, args[0], *out)
	})
	files := a.asks(func(cmd *cobra.Command, cl *wire.Client, args []string) error {
		about := "all models"
		if len(args) > 0 {
			r.Name, about = args[0], args[0]
		}
		p := a.progress(outTable, about)
		res, failed := cl.Verify(cmd.Context(), r, func(e wire.VerifyEvent) {
			p.event(wire.Event{Status: e.Status, Digest: digest.Digest(e.Status), File: string(e.Status), Total: e.Total, Completed: e.Completed})
		})
		p.end()
		if failed != nil && len(res.Bad)+len(res.Snapshots) == 0 {
			return failed
		}
		if err := a.verified(res, *out); err != nil {
			return err
		}
		switch {
		case failed != nil:
			return failed
		case res.Left > 0 && !r.Repair:
			return fmt.Errorf("%s damaged or missing; \"ballast verify --repair\" downloads them again: %w", objects(res.Left), errdefs.ErrDataLoss)
		case res.Left > 0:
			return fmt.Errorf("%s still damaged or missing; \"ballast gc\" removes those that no model needs, the next pull of an image restores those that its containers need: %w", objects(res.Left), errdefs.ErrDataLoss)
		}
		if res.LeftSnapshots > 0 {
			return leftSnapshots(res.LeftSnapshots, r.Repair)
		}
		return nil
	})
	c.RunE = func(cmd *cobra.Command, args []string) error {
		identity := slices.ContainsFunc([]string{"trusted-root", "issuer", "subject"}, cmd.Flags().Changed)
		switch {
		case signatures && (len(args) == 0 || r.Repair):
			return usage("--signatures needs a reference, and cannot be used with --repair")
		case len(keys) > 0 && !signatures:
			return usage("--key is for --signatures")
		case cmd.Flags().Changed("key") && (len(keys) == 0 || slices.Contains(keys, "")):
			return usage("--key needs the file of a public key")
		case identity && !signatures:
			return usage("--trusted-root, --issuer and --subject are for --signatures")
		case identity && (id.TrustedRoot == "" || id.Issuer == "" || id.Subject == ""):
			return usage("a keyless signature needs --trusted-root, --issuer and --subject")
		case len(keys) > 0 || identity:
			return a.signedBy(cmd.Context(), keys, id, args[0], *out)
		case signatures:
			return ofRules(cmd, args)
		}
		return files(cmd, args)
	}
	return c
}

// leftSnapshots returns an error with advice for files of snapshots that have problems.
func leftSnapshots(n int, repaired bool) error {
	if repaired {
		return fmt.Errorf("%s of snapshots still wrong; remove the images from containerd (\"ctr images rm --sync REF\") and pull them again: %w", count(n, "file"), errdefs.ErrDataLoss)
	}
	return fmt.Errorf("%s of snapshots wrong; \"ballast verify --repair\" restores them: %w", count(n, "file"), errdefs.ErrDataLoss)
}

func objects(n int) string { return count(n, "object") }

// count returns "1 object is" or "2 objects are".
func count(n int, what string) string {
	if n == 1 {
		return plural(n, what) + " is"
	}
	return plural(n, what) + " are"
}

// plural returns "1 object" or "2 objects".
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (a *app) verified(res wire.VerifyResult, out output) error {
	if len(res.Repaired) > 0 {
		a.warn("containers that have files of repaired models open keep the old files until they are restarted")
	}
	if out == outJSON {
		return a.printJSON(res)
	}
	if a.quiet {
		for _, b := range res.Bad {
			fmt.Fprintln(a.stdout, b.Digest)
		}
		for _, p := range res.Snapshots {
			fmt.Fprintln(a.stdout, p.Snapshot)
		}
		return nil
	}
	for _, b := range res.Bad {
		fmt.Fprintf(a.stdout, "%s  %s  %s\n", b.Digest, size(b.Size), printable(b.Problem))
	}
	for _, p := range res.Snapshots {
		about := p.Path
		if about == "" {
			about = p.Table.String()
		}
		fmt.Fprintf(a.stdout, "snapshot %s  %s  %s\n", p.Snapshot, printable(about), printable(p.Problem))
	}
	for _, ref := range res.Repaired {
		fmt.Fprintf(a.stdout, "repaired %s\n", printable(ref))
	}
	if len(res.Bad)+len(res.Snapshots) == 0 {
		fmt.Fprintf(a.stdout, "%s read, no damage found\n", size(res.Bytes))
	}
	return nil
}

// signatures looks for the signatures of references and prints the results of the rules. It returns
// an error if one is refused, or has no rule.
func (a *app) signatures(ctx context.Context, cl *wire.Client, ref string, out output) error {
	if _, err := resolve.ParseRef(ref); err != nil {
		return &usageError{err}
	}
	res, err := cl.Signatures(ctx, ref)
	if err != nil {
		return err
	}
	rows := signatureRows(res.Results)
	for _, s := range res.Found {
		rows = append(rows, []string{"not checked", "no rule", s})
	}
	if err := a.show(out, res, signersOf(res.Results), rows); err != nil {
		return err
	}
	if len(res.Results) == 0 {
		return fmt.Errorf("%s: nothing was checked: no [[verify.rule]] of the configuration matches it; add one, and restart ballastd: %w", ref, errdefs.ErrFailedPrecondition)
	}
	for _, r := range res.Results {
		switch r.State {
		case wire.SignatureRefused:
			return fmt.Errorf("%s: refused by rule %q: %w", ref, r.Rule, errdefs.ErrFailedPrecondition)
		case wire.SignatureFailed:
			return fmt.Errorf("%s: the search for its signatures failed: %w", ref, errdefs.ErrUnavailable)
		}
	}
	return nil
}

// signedBy requires a signature of a model by one of some keys, or by an identity. It asks the registry, with an empty
// store of its own.
func (a *app) signedBy(ctx context.Context, keys []string, id signature.SignerOptions, name string, out output) (err error) {
	ref, err := resolve.ParseRef(name)
	if err != nil {
		return &usageError{err}
	}
	var signers []signature.SignerOptions
	for _, kind := range []string{signature.TypeCosign, signature.TypeOMS} {
		for _, key := range keys {
			signers = append(signers, signature.SignerOptions{Type: kind, Key: key})
		}
		if id.TrustedRoot != "" {
			id.Type = kind
			signers = append(signers, id)
		}
	}
	by, flag := slices.Clone(keys), "--key"
	if id.TrustedRoot != "" {
		by, flag = append(by, id.Subject+" of "+id.Issuer), "--trusted-root"
	}
	rule, err := signature.NewRule(signature.RuleOptions{
		Name: flag, Mode: signature.Enforce, Matches: func(string) bool { return true }, Any: signers,
	})
	if err != nil {
		return asUsage(err)
	}
	r, err := a.resolver(name)
	if err != nil {
		return err
	}
	defer r.Upstream.Close()
	dir, err := os.MkdirTemp("", "ballast-verify")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r.Settings.TempDir, r.Titled = dir, anyRepository
	h := &registry.Handler{Resolver: *r, Log: a.log()}
	if h.Store, err = store.Open(filepath.Join(dir, "store"), store.Options{Reserve: 1, Log: a.log()}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close(), h.Store.Close()) }()
	h.Signatures = &signature.Checker{Rules: []*signature.Rule{rule}, Store: h.Store, Log: a.log()}
	model, results, _, err := h.Checked(a.waiting(ctx), ref)
	if err != nil {
		return wire.About(name, err)
	}
	res := wire.Signatures{Ref: ref.String(), Origin: model.Origin.Digest, Results: translate.Signatures(results)}
	if err := a.show(out, res, signersOf(res.Results), signatureRows(res.Results)); err != nil {
		return err
	}
	for _, r := range res.Results {
		if len(r.Signers) > 0 { // also of a model whose bytes are compared later
			continue
		}
		switch r.State {
		case wire.SignatureRefused:
			return fmt.Errorf("%s: not signed by %s: %w", name, strings.Join(by, " or "), errdefs.ErrFailedPrecondition)
		case wire.SignatureFailed:
			return fmt.Errorf("%s: the search for its signatures failed: %w", name, errdefs.ErrUnavailable)
		case wire.SignaturePending:
			return fmt.Errorf("%s: its files are known only when the model is complete; a node with a [[verify.rule]] for it checks them then: %w", name, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// signatureRows returns table rows about signers.
func signatureRows(results []wire.SignatureResult) (rows [][]string) {
	for _, r := range results {
		about := r.Signers
		if r.State != wire.SignatureAccepted {
			about = r.Reasons
		}
		text := strings.Join(about, "; ")
		if !r.Kept.IsZero() {
			text += " (found " + ago(r.Kept) + ")"
		}
		rows = append(rows, []string{string(r.State), "rule " + r.Rule + ", " + r.Mode, text})
	}
	return rows
}

// signersOf returns the signers that rules accept.
func signersOf(results []wire.SignatureResult) []string {
	all := []string{}
	for _, r := range results {
		if r.State == wire.SignatureAccepted {
			all = append(all, r.Signers...)
		}
	}
	return all
}

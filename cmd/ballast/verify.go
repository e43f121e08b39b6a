package main

import (
	"fmt"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"
)

func (a *app) verifyCommand() *cobra.Command {
	var r admin.VerifyRequest
	var signatures bool
	c := &cobra.Command{
		Use:   "verify [REF|DIGEST]",
		Short: "read models and compare them with their digests",
		Long: `Read all objects, or those of one model, and compare them with their digests. Compare also the files
that snapshots show with their models. What is damaged is set aside at once: it can not be read until
it is fetched again. --repair fetches what is damaged or missing, and mends the snapshots that show it.
A pull, or reading a model that is not complete, fetches it too.

With --signatures, look instead for the signatures of REF, on this node and in its registry, and say
whether the rules of the configuration accept them. No weights are read.`,
		Args: cobra.MaximumNArgs(1),

		ValidArgsFunction: a.completes(1, modelRefs),
	}
	out := outputFlag(c)
	c.Flags().BoolVar(&r.Repair, "repair", false, "fetch again what is wrong")
	c.Flags().BoolVar(&signatures, "signatures", false, "look who signed REF")
	c.RunE = a.asks(func(cmd *cobra.Command, cl *admin.Client, args []string) error {
		if err := names(args); err != nil {
			return err
		}
		if signatures {
			if len(args) == 0 || r.Repair {
				return usage("--signatures needs a reference, and does not go with --repair")
			}
			return a.signatures(cmd.Context(), cl, args[0], *out)
		}
		about := "all models"
		if len(args) > 0 {
			r.Name, about = args[0], args[0]
		}
		p := a.progress(about, outTable)
		res, failed := cl.Verify(cmd.Context(), r, func(e admin.VerifyEvent) {
			p.event(admin.Event{Status: e.Status, Digest: digest.Digest(e.Status), File: e.Status, Total: e.Total, Completed: e.Completed})
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
			return fmt.Errorf("%s damaged or missing; \"ballast verify --repair\" fetches again: %w", objects(res.Left), errdefs.ErrDataLoss)
		case res.Left > 0:
			return fmt.Errorf("%s still not well; what no model needs goes with \"ballast gc\", what a container needs comes with the next pull of its image: %w", objects(res.Left), errdefs.ErrDataLoss)
		}
		if res.LeftSnapshots > 0 {
			return leftSnapshots(res.LeftSnapshots, r.Repair)
		}
		return nil
	})
	return c
}

// leftSnapshots says what to do about files of snapshots that are not well.
func leftSnapshots(n int, repaired bool) error {
	if repaired {
		return fmt.Errorf("%s of snapshots still not right; remove the images from containerd (\"ctr images rm --sync REF\") and pull them again: %w", count(n, "file"), errdefs.ErrDataLoss)
	}
	return fmt.Errorf("%s of snapshots not right; \"ballast verify --repair\" shows them again: %w", count(n, "file"), errdefs.ErrDataLoss)
}

func objects(n int) string { return count(n, "object") }

// count returns "1 object is" or "2 objects are".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what + " is"
	}
	return fmt.Sprintf("%d %ss are", n, what)
}

func (a *app) verified(res admin.VerifyResult, out output) error {
	if len(res.Repaired) > 0 {
		a.warn("containers that have files of repaired models open read the old ones until they are restarted")
	}
	if out == outJSON {
		return a.printJSON(res)
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
	if len(res.Bad)+len(res.Snapshots) == 0 && !a.quiet {
		fmt.Fprintf(a.stdout, "%s read, all is well\n", size(res.Bytes))
	}
	return nil
}

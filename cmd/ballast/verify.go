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
	c := &cobra.Command{
		Use:   "verify [REF|DIGEST]",
		Short: "read models and compare them with their digests",
		Long:  "Read all objects, or those of one model, and compare them with their digests. With --repair,\nwhat is wrong is taken away and fetched again, and what shows it is mended.",
		Args:  cobra.MaximumNArgs(1),
	}
	out := outputFlag(c)
	c.Flags().BoolVar(&r.Repair, "repair", false, "fetch again what is wrong")
	c.RunE = a.asks(func(cmd *cobra.Command, cl *admin.Client, args []string) error {
		if len(args) > 0 {
			r.Name = args[0]
		}
		p := a.progress(r.Name, outTable)
		res, err := cl.Verify(cmd.Context(), r, func(e admin.VerifyEvent) {
			p.event(admin.Event{Status: e.Status, Digest: digest.Digest(e.Status), File: e.Status, Total: e.Total, Completed: e.Completed})
		})
		p.end()
		if err != nil {
			return err
		}
		if err := a.verified(res, *out); err != nil {
			return err
		}
		if len(res.Bad) > 0 && !r.Repair {
			return fmt.Errorf("%d objects are damaged; \"ballast verify --repair\" fetches them again: %w", len(res.Bad), errdefs.ErrDataLoss)
		}
		return nil
	})
	return c
}

func (a *app) verified(res admin.VerifyResult, out output) error {
	if out == outJSON {
		return a.printJSON(res)
	}
	for _, b := range res.Bad {
		fmt.Fprintf(a.stdout, "%s  %s  %s\n", b.Digest, size(b.Size), printable(b.Problem))
	}
	for _, ref := range res.Repaired {
		fmt.Fprintf(a.stdout, "repaired %s\n", ref)
	}
	if len(res.Bad) == 0 && !a.quiet {
		fmt.Fprintf(a.stdout, "%s read, all is well\n", size(res.Bytes))
	}
	return nil
}

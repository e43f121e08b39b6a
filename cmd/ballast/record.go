package main

import (
	"context"
	"fmt"

	"github.com/ballast-dev/ballast/cmd/internal/contract/translate"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/spf13/cobra"
)

func (a *app) recordCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "record REF",
		Short: "write the order in which a lazy model is first read beside the model, for other nodes",
		Long: `Write the order in which the parts of a model are first read on this node into the repository of the model, beside
it. ballastd records it while the model is not complete. Other nodes that mount the model download it in this order.`,
		Example:           "  ballast record registry.example/team/model:v1",
		Args:              modelArgs(1, 1),
		ValidArgsFunction: a.completes(1, modelRefs),
	}
	c.RunE = a.asks(func(cmd *cobra.Command, cl *wire.Client, args []string) error {
		return a.record(cmd.Context(), cl, args[0])
	})
	return c
}

// record writes the recorded order of a model into the repository of its reference.
func (a *app) record(ctx context.Context, cl *wire.Client, name string) error {
	ref, err := resolve.ParseRef(name)
	if err != nil || ref.URL != "" {
		return usage("%s is not the reference of a model in a registry", name)
	}
	r, err := cl.Order(ctx, name)
	if err != nil {
		return err
	}
	resolver, err := a.resolver(name)
	if err != nil {
		return err
	}
	defer resolver.Upstream.Close()
	dst, closeDst, err := target{ref: ref}.open(resolver.Upstream, false)
	if err != nil {
		return err
	}
	defer closeDst() // of a registry there is nothing to close
	if err := export.AttachOrder(ctx, dst, r.Image, translate.OrderOf(r.Order)); err != nil || a.quiet {
		return err
	}
	_, err = fmt.Fprintf(a.stdout, "%s  %d ranges, beside %s\n", ref.Name(), len(r.Order.Ranges), r.Image.Digest)
	return err
}

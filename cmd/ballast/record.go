package main

import (
	"context"
	"fmt"
	"os"

	"github.com/ballast-dev/ballast/cmd/internal/translate"
	"github.com/ballast-dev/ballast/cmd/internal/wire"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/spf13/cobra"
)

func (a *app) recordCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "record REF|DIGEST",
		Short: "print the order in which a lazy model is first read, or write it beside the model, for other nodes",
		Long: `Print, as JSON, the order in which the parts of a model are first read on this node. ballastd records it while
the model is not complete. Nodes download a model in its order if --push has written that into the registry, beside the
model, or if they get it from a file, with "ballast prefetch --order" or "ballast convert --order".`,
		Example:           "  ballast record registry.example/team/model:v1 > order.json\n  ballast record --push registry.example/team/model:v1",
		Args:              modelNames(1, 1),
		ValidArgsFunction: a.completes(1, modelRefs),
	}
	var push bool
	c.Flags().BoolVar(&push, "push", false, "write the order into the repository of REF")
	c.RunE = a.asks(func(cmd *cobra.Command, cl *wire.Client, args []string) error {
		r, err := cl.Order(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if push {
			return a.pushOrder(cmd.Context(), args[0], r)
		}
		p, err := translate.OrderOf(r.Order).Encode()
		if err != nil {
			return err
		}
		_, err = a.stdout.Write(append(p, '\n'))
		return err
	})
	return c
}

// pushOrder writes an order into the repository of a reference.
func (a *app) pushOrder(ctx context.Context, name string, r wire.Recorded) error {
	ref, err := resolve.ParseRef(name)
	if err != nil || ref.URL != "" {
		return usage("%s: --push is for the reference of a model in a registry", name)
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

// readOrder reads the order in a file, without one if the name is empty.
func readOrder(file string) (o filetable.Order, err error) {
	if file == "" {
		return o, nil
	}
	p, err := os.ReadFile(file)
	if err == nil {
		o, err = filetable.ParseOrder(p)
	}
	if err != nil {
		return o, usage("--order %s: %w", file, err)
	}
	return o, nil
}

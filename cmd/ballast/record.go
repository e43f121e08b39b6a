package main

import (
	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/spf13/cobra"
)

func (a *app) recordCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "record REF|DIGEST",
		Short: "print the order in which a lazy model is first read",
		Long: `Print, as JSON, the order in which the parts of a model are first read on this node. ballastd records it while
the model is not complete.`,
		Example:           "  ballast record registry.example/team/model:v1 > order.json",
		Args:              modelNames(1, 1),
		ValidArgsFunction: a.completes(1, modelRefs),
	}
	c.RunE = a.asks(func(cmd *cobra.Command, cl *api.Client, args []string) error {
		r, err := cl.Order(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		p, err := r.Order.Encode()
		if err != nil {
			return err
		}
		_, err = a.stdout.Write(append(p, '\n'))
		return err
	})
	return c
}

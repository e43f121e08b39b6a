package main

import (
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/store/durable"
	"github.com/spf13/cobra"
)

func (a *app) nodeCommand() *cobra.Command {
	c := &cobra.Command{
		Use:    "node COMMAND",
		Short:  "check this node; for the pods of the chart",
		Hidden: true,
	}
	c.AddCommand(&cobra.Command{
		Use:   "ready",
		Short: "check that the daemon of this version serves models; for probes",
		Args:  noArgs(""),
		RunE: a.asks(func(cmd *cobra.Command, cl *wire.Client, _ []string) error {
			return cl.Ready(cmd.Context())
		}),
	})
	c.AddCommand(&cobra.Command{
		Use:   "touch DIR",
		Short: "write something to the disk of a directory; for ballast doctor",
		Args:  numberOfArgs(1, 1, "one directory expected"),
		RunE:  func(_ *cobra.Command, args []string) error { return durable.Touch(args[0]) },
	})
	return group(c)
}

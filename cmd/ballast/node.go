package main

import (
	"github.com/ballast-dev/ballast/cmd/internal/api"
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
		Args:  cobra.NoArgs,
		RunE: a.asks(func(cmd *cobra.Command, cl *api.Client, _ []string) error {
			return cl.Ready(cmd.Context())
		}),
	})
	return group(c)
}

package main

import (
	"fmt"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/spf13/cobra"
)

func (a *app) pauseCommand() *cobra.Command {
	return a.turn(true, &cobra.Command{
		Use:   "pause",
		Short: "pause background downloads",
		Long: `Pause background downloads of all models until "ballast resume" or the next start of ballastd. Reads,
prefetches and pulls continue.`,
	})
}

func (a *app) resumeCommand() *cobra.Command {
	return a.turn(false, &cobra.Command{Use: "resume", Short: "resume background downloads"})
}

// turn completes a command that pauses or resumes background downloads.
func (a *app) turn(pause bool, c *cobra.Command) *cobra.Command {
	c.Args = noArgs("")
	out := outputFlag(c)
	c.RunE = a.asks(func(cmd *cobra.Command, cl *wire.Client, _ []string) error {
		paused, err := cl.Pause(cmd.Context(), pause)
		switch {
		case err != nil:
			return err
		case *out == outJSON:
			return a.printJSON(wire.PauseRequest{Paused: paused})
		case a.quiet:
		case paused:
			fmt.Fprintln(a.stdout, "paused: no background downloads; reads continue")
		default:
			fmt.Fprintln(a.stdout, "resumed")
		}
		return nil
	})
	return c
}

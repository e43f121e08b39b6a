package main

import (
	"context"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/spf13/cobra"
)

// completeTimeout limits the time that a shell waits for the daemon.
const completeTimeout = time.Second

// completes returns the ValidArgsFunction of a command with up to most arguments (0: any number),
// whose values ask requests from the daemon. If the daemon does not answer, there are no
// completions.
func (a *app) completes(most int, ask func(context.Context, *wire.Client) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if most > 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		cl, err := a.client()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer cl.Close()
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
		defer cancel()
		words := slices.DeleteFunc(ask(ctx, cl), func(s string) bool {
			return slices.Contains(args, s) || printable(s) != s
		})
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

// modelRefs returns the references of models.
func modelRefs(ctx context.Context, cl *wire.Client) []string {
	images, err := cl.Images(ctx)
	if err != nil {
		return nil
	}
	var refs []string
	for _, im := range images {
		refs = append(refs, im.Refs...)
	}
	return refs
}

// pinnedRefs returns the references of pins.
func pinnedRefs(ctx context.Context, cl *wire.Client) []string {
	pins, err := cl.Pins(ctx)
	if err != nil {
		return nil
	}
	var refs []string
	for _, p := range pins {
		refs = append(refs, p.Name)
	}
	return refs
}

package main

import (
	"context"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/spf13/cobra"
)

// completeTimeout is how long a shell waits for the daemon after Tab.
const completeTimeout = time.Second

// completes makes the ValidArgsFunction of a command with up to most arguments (0: any number)
// that ask the daemon for. A daemon that does not answer completes nothing.
func (a *app) completes(most int, ask func(context.Context, *admin.Client) []string) cobra.CompletionFunc {
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

// modelRefs asks for the references of models.
func modelRefs(ctx context.Context, cl *admin.Client) []string {
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

// pinnedRefs asks for the references of pins.
func pinnedRefs(ctx context.Context, cl *admin.Client) []string {
	pins, err := cl.Pins(ctx)
	if err != nil {
		return nil
	}
	var refs []string
	for _, p := range pins {
		refs = append(refs, admin.PinnedRef(p.Ref))
	}
	return refs
}

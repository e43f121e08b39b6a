package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/store"
	"github.com/spf13/cobra"
)

func (a *app) rmCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "rm REF|DIGEST...",
		Short:             "forget models and their pins",
		Long:              "Forget models and their pins. What containers, images of containerd or mounts use stays until they\nare gone; the disk is given back by the collector, or at once by \"ballast gc\".",
		Args:              modelArgs(1, 0),
		ValidArgsFunction: a.completes(0, modelRefs),
		RunE: a.asks(func(cmd *cobra.Command, cl *admin.Client, args []string) error {
			if err := names(args); err != nil {
				return err
			}
			return a.each(args, func(name string) error {
				r, err := cl.RemoveImage(cmd.Context(), name)
				for _, m := range r.Manifests {
					fmt.Fprintln(a.stdout, m)
				}
				for _, ref := range r.Untagged {
					fmt.Fprintln(a.stdout, printable(ref))
				}
				for _, m := range r.InUse {
					a.note("%s is in use; its files stay until the containers, images of containerd and mounts (\"ballast mount\") that show it are gone", m)
				}
				return err
			})
		}),
	}
}

// each calls f with all names, goes on after an error, which it prints, and returns the first.
func (a *app) each(names []string, f func(string) error) error {
	var first error
	for _, n := range names {
		err := f(n)
		if errors.Is(err, context.Canceled) { // who pressed Ctrl-C means all
			return err
		}
		if err == nil {
			continue
		}
		a.complain(err)
		if first == nil {
			first = &saidError{err}
		}
	}
	return first
}

func (a *app) pinCommand() *cobra.Command {
	var ttl time.Duration
	c := &cobra.Command{
		Use:   "pin [REF|DIGEST...]",
		Short: "keep models from the collector; without arguments, list pins",
		Long: `Keep models from the collector; without arguments, list pins. A pin keeps the model that its name
stands for when it is made: if the tag moves, the list says so, and "ballast prefetch REF" or
"ballast pin REF" moves the pin after it.`,

		ValidArgsFunction: a.completes(0, modelRefs),
	}
	out := outputFlag(c)
	c.Flags().DurationVar(&ttl, "ttl", 0, "how long the pin holds (default: until it is removed)")
	c.RunE = a.asks(func(cmd *cobra.Command, cl *admin.Client, args []string) error {
		switch {
		case ttl < 0:
			return usage("--ttl %v is negative", ttl)
		case len(args) == 0 && cmd.Flags().Changed("ttl"):
			return usage("--ttl needs the models to pin")
		}
		if err := names(args); err != nil {
			return err
		}
		if len(args) == 0 {
			pins, err := cl.Pins(cmd.Context())
			if err != nil {
				return err
			}
			return a.pins(pins, *out)
		}
		var all []admin.Pin
		err := a.each(args, func(name string) error {
			pins, err := cl.Pin(cmd.Context(), admin.PinRequest{Name: name, TTL: ttl})
			all = append(all, pins...)
			return err
		})
		if len(all) > 0 {
			if err := a.pins(all, *out); err != nil {
				return err
			}
		}
		return err
	})
	return c
}

func (a *app) pins(pins []admin.Pin, out output) error {
	if out == outJSON {
		return a.printJSON(pins)
	}
	if a.quiet {
		for _, p := range pins {
			fmt.Fprintln(a.stdout, printable(admin.PinnedRef(p.Ref)))
		}
		return nil
	}
	rows := [][]string{{"PIN", "DIGEST", "SIZE", "EXPIRES"}}
	for _, p := range pins {
		d := shortDigest(p.Digest.String())
		if p.Moved != "" {
			d += " (moved: the name is " + shortDigest(p.Moved.String()) + " now)"
		}
		rows = append(rows, []string{admin.PinnedRef(p.Ref), d, size(p.ModelSize), ago(p.Expires)})
	}
	return a.table(rows)
}

func (a *app) unpinCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "unpin REF|DIGEST...",
		Short:             "let the collector take models that nothing else uses",
		Long:              "Remove the pin of a reference, or with a digest all pins of a model. The collector then takes it when\nspace runs short, unless other pins, images or containers use it.",
		Args:              modelArgs(1, 0),
		ValidArgsFunction: a.completes(0, pinnedRefs),
		RunE: a.asks(func(cmd *cobra.Command, cl *admin.Client, args []string) error {
			if err := names(args); err != nil {
				return err
			}
			return a.each(args, func(name string) error {
				pins, err := cl.Unpin(cmd.Context(), name)
				for _, p := range pins {
					fmt.Fprintln(a.stdout, printable(admin.PinnedRef(p.Ref)))
				}
				return err
			})
		}),
	}
}

func (a *app) gcCommand() *cobra.Command {
	var o store.GCOptions
	var keep string
	c := &cobra.Command{
		Use:   "gc",
		Short: "remove what nothing refers to",
		Args:  cobra.NoArgs,
	}
	out := outputFlag(c)
	c.Flags().BoolVar(&o.DryRun, "dry-run", false, "only say what would be removed")
	c.Flags().StringVar(&keep, "keep", "0", "bytes of it that may stay, such as 50GB; the longest unused go first")
	c.RunE = a.asks(func(cmd *cobra.Command, cl *admin.Client, _ []string) error {
		n, err := config.ParseUnitSize(keep)
		if err != nil {
			return usage("--keep: %w", err)
		}
		o.Keep = int64(n)
		r, err := cl.GC(cmd.Context(), o)
		if err != nil {
			return err
		}
		if *out == outJSON {
			return a.printJSON(r)
		}
		verb := "removed"
		if o.DryRun {
			verb = "would remove"
		}
		fmt.Fprintf(a.stdout, "%s %d objects (%s), %d unfinished fetches, %d images\n", verb, r.Objects, size(r.Bytes), r.Partials, r.Images)
		return nil
	})
	return c
}

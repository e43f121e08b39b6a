package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/store"
	"github.com/spf13/cobra"
)

func (a *app) rmCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "rm REF|DIGEST...",
		Short:             "remove models and their pins",
		Long:              "Remove models and their pins. Files that containers, images of containerd, leases or mounts use stay until these are gone.\nGarbage collection frees the disk space later, \"ballast gc\" at once. Downloads that no client waits for stop.",
		Args:              modelNames(1, 0),
		ValidArgsFunction: a.completes(0, modelRefs),
		RunE: a.asks(func(cmd *cobra.Command, cl *api.Client, args []string) error {
			return a.each(args, func(name string) error {
				r, err := cl.RemoveImage(cmd.Context(), name)
				for _, m := range r.Manifests {
					fmt.Fprintln(a.stdout, m)
				}
				for _, ref := range r.Untagged {
					fmt.Fprintln(a.stdout, printable(ref))
				}
				if r.Stopped > 0 {
					a.note("%s stopped", plural(r.Stopped, "download"))
				}
				for _, m := range r.InUse {
					a.note("%s is in use; its files stay until the containers, images of containerd (\"ctr -n NS images ls\"), leases of interrupted pulls (\"ctr -n NS leases ls\") and mounts (\"ballast mount\") that use it are gone", m)
				}
				return err
			})
		}),
	}
}

// each calls f with all names, continues after an error, which it prints, and returns the first.
func (a *app) each(names []string, f func(string) error) error {
	var first error
	for _, n := range names {
		err := f(n)
		if errors.Is(err, context.Canceled) { // Ctrl-C applies to all names
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
		Short: "protect models from garbage collection; without arguments, list pins",
		Long: `Protect models from garbage collection; without arguments, list pins. A pin belongs to the model that its
reference stands for when the pin is made. If the tag moves, the list says so, and "ballast prefetch REF"
or "ballast pin REF" moves the pin.`,
		Args:              modelNames(0, 0),
		ValidArgsFunction: a.completes(0, modelRefs),
	}
	out := outputFlag(c)
	c.Flags().DurationVar(&ttl, "ttl", 0, "remove the pin after this time (default: keep it)")
	c.RunE = a.asks(func(cmd *cobra.Command, cl *api.Client, args []string) error {
		switch {
		case ttl < 0:
			return usage("--ttl %v is negative", ttl)
		case len(args) == 0 && cmd.Flags().Changed("ttl"):
			return usage("--ttl needs models to pin")
		}
		if len(args) == 0 {
			pins, err := cl.Pins(cmd.Context())
			if err != nil {
				return err
			}
			return a.pins(pins, *out)
		}
		var all []api.Pin
		err := a.each(args, func(name string) error {
			pins, err := cl.Pin(cmd.Context(), api.PinRequest{Name: name, TTL: ttl})
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

func (a *app) pins(pins []api.Pin, out output) error {
	refs, rows := []string{}, [][]string{{"PIN", "DIGEST", "SIZE", "EXPIRES"}}
	for _, p := range pins {
		refs = append(refs, api.PinnedRef(p.Ref))
		d := shortDigest(p.Digest.String())
		if p.Moved != "" {
			d += " (moved: the name now is " + shortDigest(p.Moved.String()) + ")"
		}
		rows = append(rows, []string{api.PinnedRef(p.Ref), d, size(p.ModelSize), ago(p.Expires)})
	}
	return a.show(out, pins, refs, rows)
}

func (a *app) unpinCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "unpin REF|DIGEST...",
		Short:             "remove pins, so that garbage collection can remove the models",
		Long:              "Remove the pin of a reference, or with a digest all pins of a model. The model is then removed when space is\nneeded, unless other pins, images or containers use it.",
		Args:              modelNames(1, 0),
		ValidArgsFunction: a.completes(0, pinnedRefs),
		RunE: a.asks(func(cmd *cobra.Command, cl *api.Client, args []string) error {
			return a.each(args, func(name string) error {
				pins, err := cl.Unpin(cmd.Context(), name)
				for _, p := range pins {
					fmt.Fprintln(a.stdout, printable(api.PinnedRef(p.Ref)))
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
		Short: "remove everything that is unused",
		Args:  cobra.NoArgs,
	}
	out := outputFlag(c)
	c.Flags().BoolVar(&o.DryRun, "dry-run", false, "show what would be removed")
	c.Flags().StringVar(&keep, "keep", "0", "keep this much of it, such as 50GB; the least recently used goes first")
	c.RunE = a.asks(func(cmd *cobra.Command, cl *api.Client, _ []string) error {
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
		if r.Downloads > 0 {
			verb := map[bool]string{false: "stopped", true: "would stop"}[o.DryRun]
			fmt.Fprintf(a.stdout, "%s %s that no client waits for\n", verb, plural(r.Downloads, "download"))
		}
		if r.Objects == 0 && !a.quiet {
			a.note("models stay that pins, containers, images of containerd, leases of interrupted pulls (\"ctr -n NS leases ls\") or mounts use")
		}
		return nil
	})
	return c
}

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func (a *app) rmCommand() *cobra.Command {
	var dryRun, now bool
	c := &cobra.Command{
		Use:   "rm REF|DIGEST...",
		Short: "remove models and their pins",
		Long: `Remove models and their pins. Downloads that no client waits for stop. The files stay on the disk until garbage
collection needs the space; with --now they are removed at once, but for those that other models have.

Files that containers, images of containerd, leases or mounts use stay until these are gone; --now then removes
nothing, and prints what uses the model and the commands that end that.`,
		Example:           "  ctr images rm --sync REF && ballast rm --now REF",
		Args:              modelNames(1, 0),
		ValidArgsFunction: a.completes(0, modelRefs),
	}
	c.Flags().BoolVar(&dryRun, "dry-run", false, "show what would be removed")
	c.Flags().BoolVar(&now, "now", false, "remove the files from the disk at once, if nothing uses the model")
	c.RunE = a.asks(func(cmd *cobra.Command, cl *wire.Client, args []string) error {
		remove := cl.RemoveImage
		if dryRun {
			remove = cl.Removal
		}
		return each(a, args, func(name string) error {
			r, err := remove(cmd.Context(), name, now)
			if err == nil {
				a.removed(r, dryRun, now)
			}
			return err
		})
	})
	return c
}

// removed prints the result of a removal; with --quiet, digests and references.
func (a *app) removed(r wire.Removed, dryRun, now bool) {
	verb := map[bool]string{false: "removed", true: "would remove"}[dryRun]
	for i, m := range r.Manifests {
		if a.quiet {
			fmt.Fprintln(a.stdout, m)
		} else {
			fmt.Fprintf(a.stdout, "%s %s (%s)\n", verb, printable(r.Names[i]), shortDigest(m.String()))
		}
	}
	for _, ref := range r.Untagged {
		if a.quiet {
			fmt.Fprintln(a.stdout, printable(ref))
		} else {
			fmt.Fprintf(a.stdout, "%s the name %s; the model stays, it has others\n", verb, printable(ref))
		}
	}
	if r.Stopped > 0 {
		a.note("%s stopped", plural(r.Stopped, "download"))
	}
	if now && len(r.Manifests) > 0 && !a.quiet {
		fmt.Fprintf(a.stdout, "%s %s of files\n", verb, size(r.Bytes))
		if r.Left > 0 {
			a.note("%s stay: other models have them", size(r.Left))
		}
		return
	}
	for _, m := range r.InUse {
		a.note("%s is in use; its files stay until the containers, images of containerd (\"ctr -n NS images ls\"), leases of interrupted pulls (\"ctr -n NS leases ls\") and mounts (\"ballast mount ls\") that use it are gone", m)
	}
}

// each calls f with all arguments, continues after an error, which it prints, and returns the first.
func each[T any](a *app, all []T, f func(T) error) error {
	var first error
	for _, v := range all {
		err := f(v)
		if errors.Is(err, context.Canceled) { // Ctrl-C applies to all
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
	var t time.Duration
	c := &cobra.Command{
		Use:   "pin REF|DIGEST...",
		Short: "protect models from garbage collection",
		Long: `Protect models from garbage collection; "ballast pin ls" lists the pins. A pin belongs to the model that its
reference points to when the pin is made. If the tag moves, the list says so, and "ballast prefetch REF"
or "ballast pin REF" moves the pin.`,
		Args:              modelNames(1, 0),
		ValidArgsFunction: a.completes(0, modelRefs),
	}
	out := outputFlag(c)
	c.Flags().Var((*ttl)(&t), "ttl", "remove the pin after this time, such as 12h, 3d or 2w (default: keep it)")
	c.RunE = a.asks(func(cmd *cobra.Command, cl *wire.Client, args []string) error {
		var all []wire.Pin
		err := each(a, args, func(name string) error {
			pins, err := cl.Pin(cmd.Context(), wire.PinRequest{Name: name, TTL: t})
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
	c.AddCommand(a.pinLsCommand())
	return c
}

func (a *app) pinLsCommand() *cobra.Command {
	c := &cobra.Command{Use: "ls", Aliases: []string{"list"}, Short: "list pins", Args: noArgs("inspect")}
	out := outputFlag(c)
	c.RunE = a.asks(func(cmd *cobra.Command, cl *wire.Client, _ []string) error {
		pins, err := cl.Pins(cmd.Context())
		if err != nil {
			return err
		}
		return a.pins(pins, *out)
	})
	return c
}

func (a *app) pins(pins []wire.Pin, out output) error {
	refs, rows := []string{}, [][]string{{"PIN", "DIGEST", "SIZE", "EXPIRES"}}
	for _, p := range pins {
		refs = append(refs, p.Name)
		d := shortDigest(p.Digest.String())
		if p.Moved != "" {
			d += " (moved: the name now is " + shortDigest(p.Moved.String()) + ")"
		}
		rows = append(rows, []string{p.Name, d, size(p.ModelSize), expires(p.Expires)})
	}
	return a.show(out, pins, refs, rows)
}

// expires describes when a pin ends.
func expires(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return "in " + ahead(t)
}

func (a *app) unpinCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "unpin REF|DIGEST...",
		Short:             "remove pins, so that garbage collection can remove the models",
		Long:              "Remove the pin of a reference, or with a digest all pins of a model. The model is then removed when space is\nneeded, unless other pins, images or containers use it.",
		Args:              modelNames(1, 0),
		ValidArgsFunction: a.completes(0, pinnedRefs),
		RunE: a.asks(func(cmd *cobra.Command, cl *wire.Client, args []string) error {
			return each(a, args, func(name string) error {
				pins, err := cl.Unpin(cmd.Context(), name)
				for _, p := range pins {
					fmt.Fprintln(a.stdout, printable(p.Name))
				}
				return err
			})
		}),
	}
}

// collected prints the result of a garbage collection.
func collected(w io.Writer, r wire.GCResult, dryRun bool) {
	verbs := map[bool][]string{false: {"removed", "stopped"}, true: {"would remove", "would stop"}}[dryRun]
	fmt.Fprintf(w, "%s %s (%s), %s, %s\n", verbs[0], plural(r.Objects, "object"), size(r.Bytes), plural(r.Partials, "unfinished download"), plural(r.Images, "image"))
	for _, m := range r.Models {
		fmt.Fprintf(w, "  %s\n", printable(m))
	}
	if r.Downloads > 0 {
		fmt.Fprintf(w, "%s %s that no client waits for\n", verbs[1], plural(r.Downloads, "download"))
	}
}

// askable returns a usage error if there is no terminal to ask on.
func askable(w io.Writer, stdin io.Reader) error {
	if _, _, ok := terminalSize(w); !ok || !isTerminal(stdin) {
		return usage("there is no terminal to ask on: write --yes, or --dry-run to see what would be removed")
	}
	return nil
}

// confirmed asks whether to go on.
func (a *app) confirmed(stdin io.Reader) bool {
	fmt.Fprint(a.stderr, "go on? [y/N] ")
	answer, _ := bufio.NewReader(stdin).ReadString('\n') // its end is a no
	return slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(answer)))
}

// isTerminal reports whether a reader is a terminal.
func isTerminal(r io.Reader) bool {
	f, ok := r.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

func (a *app) gcCommand() *cobra.Command {
	var o wire.GCOptions
	var keep string
	var yes bool
	c := &cobra.Command{
		Use:   "gc",
		Short: "remove everything that is unused",
		Long: `Remove everything that is unused: models that no pin, container, image of containerd, lease or mount needs. It
asks before, if it can; in a script, --yes is needed.`,
		Args: noArgs("rm"),
	}
	out := outputFlag(c)
	c.Flags().BoolVar(&o.DryRun, "dry-run", false, "show what would be removed")
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	c.Flags().StringVar(&keep, "keep", "0", "keep this much of it, such as 50GB; the least recently used goes first")
	c.RunE = a.asks(func(cmd *cobra.Command, cl *wire.Client, _ []string) error {
		n, err := config.ParseUnitSize(keep)
		if err != nil {
			return usage("--keep: %w", err)
		}
		o.Keep = int64(n)
		if !yes && !o.DryRun {
			if err := askable(a.stderr, cmd.InOrStdin()); err != nil {
				return err
			}
			plan, err := cl.GC(cmd.Context(), wire.GCOptions{Keep: o.Keep, DryRun: true})
			if err != nil {
				return err
			}
			if collected(a.stderr, plan, true); !a.confirmed(cmd.InOrStdin()) {
				return nil
			}
		}
		r, err := cl.GC(cmd.Context(), o)
		if err != nil {
			return err
		}
		switch {
		case *out == outJSON:
			return a.printJSON(r)
		case a.quiet:
			for _, m := range r.Models {
				fmt.Fprintln(a.stdout, printable(m))
			}
			return nil
		}
		collected(a.stdout, r, o.DryRun)
		if r.Objects == 0 {
			a.note("models stay that pins, containers, images of containerd, leases of interrupted pulls (\"ctr -n NS leases ls\") or mounts use")
		}
		return nil
	})
	return c
}

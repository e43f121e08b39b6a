package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/store"
	"github.com/spf13/cobra"
)

func (a *app) lsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list the models of this node",
		Args:    cobra.NoArgs,
	}
	out := outputFlag(c)
	c.RunE = a.asks(func(cmd *cobra.Command, cl *admin.Client, _ []string) error {
		images, err := cl.Images(cmd.Context())
		if err != nil {
			return err
		}
		if *out == outJSON {
			return a.printJSON(images)
		}
		rows := [][]string{{"REFERENCE", "DIGEST", "FORMAT", "SIZE", "STATE", "USED"}}
		for _, im := range images {
			if a.quiet {
				fmt.Fprintln(a.stdout, im.ID())
				continue
			}
			for _, ref := range orNone(im) {
				rows = append(rows, []string{ref, shortDigest(im.ID().String()), im.Origin.Format, size(im.Size), state(im, ref), ago(im.Used)})
			}
		}
		if a.quiet {
			return nil
		}
		if err := a.table(rows); err != nil {
			return err
		}
		for _, im := range images {
			if im.Error != nil {
				fmt.Fprintf(a.stdout, "\n%s is invalid: %s\n", shortDigest(im.ID().String()), printable(im.Error.Message))
			}
		}
		return nil
	})
	return c
}

// orNone returns the references of an image, or what is known instead.
func orNone(im admin.Image) []string {
	switch {
	case len(im.Refs) > 0:
		return im.Refs
	case len(im.Sources) > 0:
		return im.Sources[:1]
	}
	return []string{"<none>"}
}

// state says how a model is, and what keeps it, seen from one of its references.
func state(im admin.Image, ref string) string {
	words := []string{im.State}
	if im.State == admin.StatePulling || im.State == admin.StateLazy {
		words[0] += fmt.Sprintf(" %d%%", percent(admin.Event{Total: im.Total, Completed: im.Completed}))
	}
	if im.Paused {
		words = append(words, "paused")
	}
	if im.Unverified {
		words = append(words, "unverified")
	}
	if len(im.Pins) > 0 {
		words = append(words, pinned(im, ref))
	}
	if im.Snapshots > 0 {
		words = append(words, "in use")
	}
	return strings.Join(words, ", ")
}

// pinned says that a model is pinned, and as what, if that is not the reference: a pin keeps what
// its name stood for.
func pinned(im admin.Image, ref string) string {
	other := ""
	for _, p := range im.Pins {
		switch name := admin.PinnedRef(p); {
		case name == ref:
			return "pinned"
		case !slices.Contains(im.Refs, name):
			other = name
		}
	}
	if other == "" {
		return "pinned"
	}
	return "pinned as " + other
}

func (a *app) dfCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "df",
		Short: "show what models take on the disk, and what sharing saves",
		Args:  cobra.NoArgs,
	}
	out := outputFlag(c)
	c.RunE = a.asks(func(cmd *cobra.Command, cl *admin.Client, _ []string) error {
		u, err := cl.Usage(cmd.Context())
		if err != nil {
			return err
		}
		if *out == outJSON {
			return a.printJSON(u)
		}
		return a.table(usageRows(u))
	})
	return c
}

func usageRows(u store.Usage) [][]string {
	return [][]string{
		{"LOGICAL", size(u.Logical), "all files of all models"},
		{"SAVED", size(u.Saved), "by storing the same file once"},
		{"UNIQUE", size(u.Logical - u.Saved), "LOGICAL less SAVED: the files of models on the disk"},
		{"OTHER", size(u.Unique - (u.Logical - u.Saved)), "manifests, file tables, and files of models that are incomplete or removed"},
		{"RECLAIMABLE", size(u.Reclaimable), fmt.Sprintf("unused part of the %d objects in UNIQUE and OTHER; ballast gc removes it", u.Objects)},
		{"PARTIAL", size(u.Partial), "unfinished downloads"},
		{"FREE", size(u.Free), "of " + size(u.Capacity)},
	}
}

package main

import (
	"fmt"
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
				rows = append(rows, []string{ref, shortDigest(im.ID().String()), im.Origin.Format, size(im.Size), state(im), ago(im.Used)})
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

// state says how a model is, and what keeps it.
func state(im admin.Image) string {
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
		words = append(words, "pinned")
	}
	if im.Snapshots > 0 {
		words = append(words, "in use")
	}
	return strings.Join(words, ", ")
}

func (a *app) dfCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "df",
		Short: "say what models take on the disk, and what sharing saves",
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
		{"UNIQUE", size(u.Unique), fmt.Sprintf("%d objects on the disk", u.Objects)},
		{"SAVED", size(u.Saved), "by storing the same file once"},
		{"RECLAIMABLE", size(u.Reclaimable), "of UNIQUE: nothing refers to it; ballast gc"},
		{"PARTIAL", size(u.Partial), "fetches that are not finished"},
		{"FREE", size(u.Free), "of " + size(u.Capacity)},
	}
}

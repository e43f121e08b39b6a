package main

import (
	"fmt"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/spf13/cobra"
)

func (a *app) whyCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "why REF|DIGEST",
		Short: "explain where a model is from, why it is not lazy, who holds it, and what ends that",
		Long: `Explain a model: where it is from, its state, why it is shown only when it is complete, and what keeps its files
(pins, mounts, downloads, and of containerd images, containers, volumes of pods and leases), each with the command
that ends that.`,
		Args:              modelNames(1, 1),
		ValidArgsFunction: a.completes(1, modelRefs),
	}
	out := outputFlag(c)
	c.RunE = a.asks(func(cmd *cobra.Command, cl *wire.Client, args []string) error {
		w, err := cl.Why(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		switch {
		case *out == outJSON:
			return a.printJSON(w)
		case a.quiet:
			_, err := fmt.Fprintln(a.stdout, w.ID())
			return err
		}
		return a.why(w)
	})
	return c
}

// why prints an explanation.
func (a *app) why(w wire.Why) error {
	ref := orNone(w.Image)[0]
	rows := [][]string{
		{"Model:", strings.Join(orNone(w.Image), " ")}, {"Digest:", w.ID().String()},
		{"From:", w.Origin.Format + " " + w.Origin.Digest.String()}, {"State:", state(w.Image, ref)},
		{"Disk:", size(w.Own) + " of its own, " + size(w.Shared) + " shared with other models"},
	}
	if w.Early != "" {
		rows = append(rows, []string{"Lazy:", w.Early})
	}
	if w.Eager != "" {
		rows = append(rows, []string{"Not lazy:", w.Eager})
	}
	if w.Error != nil {
		rows = append(rows, []string{"Error:", w.Error.Message})
	}
	if err := a.table(rows); err != nil {
		return err
	}
	fmt.Fprintln(a.stdout)
	switch {
	case w.Unknown != nil:
		a.prose("  ", "what of containerd holds it is unknown: %s", printable(w.Unknown.Message))
		fmt.Fprintln(a.stdout)
	case len(w.Holders) == 0:
		a.prose("", "nothing holds it: it goes when space is short, or at once with \"ballast rm --now %s\"", printable(shortDigest(w.ID().String())))
		return nil
	}
	rows = [][]string{{"HELD BY", "NAME", "NAMESPACE", "ENDS WITH"}}
	for _, h := range w.Holders {
		end := h.End
		if !h.Expires.IsZero() {
			end += ", or " + expires(h.Expires)
		}
		rows = append(rows, []string{string(h.Kind), h.Name, h.Namespace, end})
	}
	if len(rows) == 1 {
		return nil
	}
	if err := a.table(rows); err != nil {
		return err
	}
	fmt.Fprintln(a.stdout)
	a.prose("", "When these are gone, its own bytes come back at the next collection, or at once with \"ballast rm --now\".")
	return nil
}

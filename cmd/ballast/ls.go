package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/spf13/cobra"
)

func (a *app) lsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list the models of this node",
		Long: `List the models of this node. The state shows the progress and the remaining time of a download, and what
keeps a model and for how long.

Filters, which must all match: state=STATE (complete, lazy, pulling, partial, absent, invalid, index),
format=FORMAT, ref=PART of a reference, pinned=true|false, used=true|false (by containers, images of
containerd or mounts).

With --size, OWN is what no other model of the node needs: what removing it gives back, once nothing uses it
and it is collected. SHARED is the rest of what is on the disk. Unfinished files are in neither.`,
		Example: "  ballast ls --filter state=lazy --watch\n  ballast ls -q --filter pinned=false --filter used=false",
		Args:    noArgs("inspect"),
	}
	out := outputFlag(c)
	watch := watchFlag(c)
	sized := c.Flags().BoolP("size", "s", false, "show what each model takes alone, and what it shares")
	each := c.Flags().String("format", "", "print a line for each model by a Go template over the fields of -o json, such as '{{.digest}} {{.size}}'")
	filters := c.Flags().StringArrayP("filter", "f", nil, "show only models with KEY=VALUE; can be repeated")
	flagValues(c, "filter", "state=", "format=", "ref=", "pinned=", "used=")
	c.RunE = a.asks(func(cmd *cobra.Command, cl *wire.Client, _ []string) error {
		keep, err := parseFilters(*filters)
		if err != nil {
			return err
		}
		line, err := template.New("--format").Parse(*each)
		switch {
		case err != nil:
			return &usageError{err}
		case *each != "" && *out == outJSON:
			return usage("--format and -o json cannot be used together")
		}
		ask := cl.Images
		if *sized {
			ask = cl.SizedImages
		}
		return a.repeat(cmd.Context(), watch(), func() error {
			images, err := ask(cmd.Context())
			if err != nil {
				return err
			}
			images = slices.DeleteFunc(images, func(im wire.Image) bool { return !keep(im) })
			if *each != "" {
				return a.formatted(line, images)
			}
			return a.list(images, *out)
		})
	})
	return c
}

// formatted prints a line for each model, by a template over its JSON.
func (a *app) formatted(line *template.Template, images []wire.Image) error {
	p, err := json.Marshal(images)
	if err != nil {
		return err
	}
	var models []map[string]any
	d := json.NewDecoder(bytes.NewReader(p))
	d.UseNumber() // sizes are whole
	if err := d.Decode(&models); err != nil {
		return err
	}
	for _, fields := range models {
		var text strings.Builder
		if err := line.Execute(&text, fields); err != nil {
			return usage("%w", err)
		}
		if _, err := fmt.Fprintln(a.stdout, printable(text.String())); err != nil {
			return err
		}
	}
	return nil
}

// list prints models.
func (a *app) list(images []wire.Image, out output) error {
	ids, rows := []string{}, [][]string{{"REFERENCE", "DIGEST", "FORMAT", "SIZE", "STATE", "LAST USED"}}
	if len(images) > 0 && images[0].Share != nil {
		rows[0] = slices.Insert(rows[0], 4, "OWN", "SHARED")
	}
	for _, im := range images {
		ids = append(ids, im.ID().String())
		for _, ref := range orNone(im) {
			row := []string{ref, shortDigest(im.ID().String()), im.Origin.Format, size(im.Size), state(im, ref), ago(im.Used)}
			if im.Share != nil {
				row = slices.Insert(row, 4, size(im.Own), size(im.Shared))
			}
			rows = append(rows, row)
		}
	}
	if err := a.show(out, images, ids, rows); err != nil || out == outJSON || a.quiet {
		return err
	}
	for _, im := range images {
		id := shortDigest(im.ID().String())
		switch {
		case im.Early != "":
			fmt.Fprintln(a.stdout)
			a.prose("  ", "%s is read before it is complete %s", id, printable(im.Early))
		case im.Eager != "":
			fmt.Fprintln(a.stdout)
			a.prose("  ", "%s is shown when it is complete: %s", id, printable(im.Eager))
		}
		if im.Error == nil {
			continue
		}
		what := "%s stalls, ballastd tries again: %s"
		switch im.State {
		case wire.StateInvalid:
			what = "%s is invalid: %s"
		case wire.StatePartial, wire.StateAbsent:
			what = "%s is damaged: %s; \"ballast verify --repair\" downloads them again"
		}
		fmt.Fprintln(a.stdout)
		a.prose("  ", what, id, printable(im.Error.Message))
	}
	return nil
}

// filterValues are the values of keys of filters that have no others.
var filterValues = map[string][]string{
	"state": {
		string(wire.StateComplete), string(wire.StateLazy), string(wire.StatePulling), string(wire.StatePartial), string(wire.StateAbsent),
		string(wire.StateInvalid), string(wire.StateIndex),
	},
	"format": formatNames(),
	"pinned": {"true", "false"},
	"used":   {"true", "false"},
}

// formatNames returns the formats of models on a node.
func formatNames() (names []string) {
	for _, f := range formats.All() {
		if f.Name != "" && f.Name != mediatype.FormatFiles {
			names = append(names, string(f.Name))
		}
	}
	return append(names, string(mediatype.FormatIndex))
}

// parseFilters returns the filter of a list of KEY=VALUE.
func parseFilters(filters []string) (func(wire.Image) bool, error) {
	var all []func(wire.Image) bool
	for _, f := range filters {
		key, value, ok := strings.Cut(f, "=")
		if !ok || value == "" {
			return nil, usage("--filter %q is not KEY=VALUE", f)
		}
		yes := value == "true"
		first, _, _ := strings.Cut(value, "/") // a variant follows
		if known := filterValues[key]; known != nil && !slices.Contains(known, first) {
			return nil, usage("--filter %s=%.100s: the values are %s", key, value, strings.Join(known, ", "))
		}
		switch key {
		case "state":
			all = append(all, func(im wire.Image) bool { return im.State == wire.ImageState(value) })
		case "format":
			all = append(all, func(im wire.Image) bool { return strings.HasPrefix(im.Origin.Format+"/", value+"/") })
		case "ref":
			all = append(all, func(im wire.Image) bool {
				return slices.ContainsFunc(orNone(im), func(ref string) bool { return strings.Contains(ref, value) })
			})
		case "pinned":
			all = append(all, func(im wire.Image) bool { return (len(im.Pins) > 0) == yes })
		case "used":
			all = append(all, func(im wire.Image) bool { return (im.Snapshots > 0) == yes })
		default:
			return nil, usage("--filter has no key %q; its keys are state, format, ref, pinned, used", key)
		}
	}
	return func(im wire.Image) bool {
		return !slices.ContainsFunc(all, func(f func(wire.Image) bool) bool { return !f(im) })
	}, nil
}

// orNone returns the references of an image, or a substitute.
func orNone(im wire.Image) []string {
	switch {
	case len(im.Refs) > 0:
		return im.Refs
	case len(im.Sources) > 0:
		return im.Sources[:1]
	}
	return []string{"<none>"}
}

// state describes the state of a model and what protects it, for one of its references.
func state(im wire.Image, ref string) string {
	words := []string{string(im.State)}
	if im.State == wire.StatePulling || im.State == wire.StateLazy {
		words[0] += fmt.Sprintf(" %d%%", percent(wire.Event{Total: im.Total, Completed: im.Completed}))
		if left := im.Total - im.Completed; im.Rate > 0 && left > 0 && !im.Paused {
			words[0] += " (" + timeLeft(left, im.Rate) + " left)"
		}
	}
	switch {
	case im.Paused:
		words = append(words, "paused")
	case im.Error != nil && (im.State == wire.StatePartial || im.State == wire.StateAbsent):
		words = append(words, "damaged")
	case im.Error != nil && im.State != wire.StateInvalid && im.Rate == 0:
		words = append(words, "stalled")
	}
	if !im.Ends.IsZero() {
		words = append(words, "stops "+expires(im.Ends))
	}
	if len(im.Pins) > 0 {
		words = append(words, pinned(im, ref))
	}
	if im.Snapshots > 0 {
		words = append(words, "in use")
	}
	return strings.Join(words, ", ")
}

// pinned describes until when a model is pinned, and under which name if that is not the reference:
// a pin protects the model that its name referred to.
func pinned(im wire.Image, ref string) string {
	var other *wire.Ref
	for i, p := range im.Pins {
		switch name := p.Name; {
		case name == ref:
			return "pinned" + until(p.Expires)
		case !slices.Contains(im.Refs, name):
			other = &im.Pins[i]
		}
	}
	if other == nil {
		return "pinned"
	}
	return "pinned as " + other.Name + until(other.Expires)
}

// until describes how long a pin lasts.
func until(expires time.Time) string {
	if expires.IsZero() {
		return ""
	}
	return " (" + ahead(expires) + " left)"
}

func (a *app) dfCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "df",
		Short: "show what models take on the disk, and what sharing saves",
		Long: `Show what models take on the disk, and what sharing saves. With --verbose also for each model: OWN is what no
other model of the node needs (what removing it gives back), SHARED is the rest.`,
		Args: noArgs("inspect"),
	}
	out := outputFlag(c)
	verbose := c.Flags().BoolP("verbose", "v", false, "also show what each model takes")
	c.RunE = a.asks(func(cmd *cobra.Command, cl *wire.Client, _ []string) error {
		if a.quiet && *out != outJSON {
			return usage("sizes have no names that --quiet could print; for programs: -o json")
		}
		u, err := cl.Usage(cmd.Context())
		if err != nil {
			return err
		}
		if !*verbose {
			return a.show(*out, u, nil, usageRows(u))
		}
		images, err := cl.SizedImages(cmd.Context())
		if err != nil {
			return err
		}
		if *out == outJSON {
			return a.printJSON(struct {
				wire.Usage
				Models []wire.Image `json:"models"`
			}{u, images})
		}
		if err := a.table(usageRows(u)); err != nil {
			return err
		}
		fmt.Fprintln(a.stdout)
		return a.table(shareRows(images))
	})
	return c
}

func usageRows(u wire.Usage) [][]string {
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

// shareRows returns the table of what models take, the ones with most own bytes first. A model has one row.
func shareRows(images []wire.Image) [][]string {
	slices.SortStableFunc(images, func(a, b wire.Image) int { return cmp.Compare(b.Own, a.Own) })
	rows := [][]string{{"MODEL", "DIGEST", "OWN", "SHARED", "STATE"}}
	for _, im := range images {
		ref := orNone(im)[0]
		rows = append(rows, []string{ref, shortDigest(im.ID().String()), size(im.Own), size(im.Shared), state(im, ref)})
	}
	return rows
}

package main

import (
	"slices"
	"strconv"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
)

// fromHeader marks a value that comes from the header of a file, and not from the origin.
const fromHeader = " (from the header of the file)"

// descriptionRows returns the rows that describe a model.
func descriptionRows(d *wire.Description) [][]string {
	if d == nil {
		return nil
	}
	var rows [][]string
	for _, r := range []struct{ label, member, value string }{
		{"Name:", "name", d.Descriptor.Name},
		{"Version:", "version", d.Descriptor.Version},
		{"Family:", "family", d.Descriptor.Family},
		{"Architecture:", "architecture", d.Config.Architecture},
		{"Weights:", "format", d.Config.Format},
		{"Parameters:", "paramSize", d.Config.ParamSize},
		{"Precision:", "precision", d.Config.Precision},
		{"Quantization:", "quantization", d.Config.Quantization},
		{"Capabilities:", "capabilities", capabilities(d.Config.Capabilities)},
		{"Context:", "contextLength", tokens(d.ContextLength)},
		{"Runner:", "runner", runnerText(d.Runner)},
		{"Source:", "sourceURL", d.Descriptor.SourceURL},
		{"Licenses:", "licenses", strings.Join(d.Descriptor.Licenses, ", ")},
	} {
		if r.value == "" {
			continue
		}
		if slices.Contains(d.FromHeaders, r.member) {
			r.value += fromHeader
		}
		rows = append(rows, []string{r.label, r.value})
	}
	for _, p := range d.Unreadable {
		rows = append(rows, []string{"Header:", "not readable: " + p.Path + ": " + p.Text})
	}
	return rows
}

// runnerText describes the runner of a model.
func runnerText(r wire.Runner) string {
	s := r.Name
	if r.FrameworkVersion != "" {
		s += ", framework " + r.FrameworkVersion
	}
	if len(r.Platforms) > 0 {
		s += ", for " + strings.Join(r.Platforms, ", ")
	}
	return strings.TrimPrefix(s, ", ")
}

func tokens(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10) + " tokens"
}

// capabilities describes capabilities.
func capabilities(c *wire.Capabilities) string {
	if c == nil {
		return ""
	}
	var words []string
	if in, out := strings.Join(c.InputTypes, ", "), strings.Join(c.OutputTypes, ", "); in+out != "" {
		words = append(words, strings.TrimSpace(in+" → "+out))
	}
	for _, f := range []struct {
		word string
		is   *bool
	}{{"reasoning", c.Reasoning}, {"tools", c.ToolUsage}, {"reward", c.Reward}} {
		if f.is != nil && *f.is {
			words = append(words, f.word)
		}
	}
	if len(c.Languages) > 0 {
		words = append(words, "languages "+strings.Join(c.Languages, " "))
	}
	if c.KnowledgeCutoff != "" {
		words = append(words, "knowledge until "+c.KnowledgeCutoff)
	}
	return strings.Join(words, "; ")
}

// originRows returns the rows about the documents of the origin.
func originRows(d wire.Detail) [][]string {
	var rows [][]string
	if docs := d.Documents; docs != nil {
		kept := []string{"manifest"}
		if docs.Child != nil {
			kept = append(kept, "child")
		}
		if docs.Config != nil {
			kept = append(kept, "config")
		}
		rows = append(rows, []string{"Kept of the origin:", strings.Join(kept, ", ") + " (--origin prints it)"})
	}
	for _, l := range d.Losses {
		where := "kept in " + l.Kept
		if l.Kept == "" {
			where = "lost"
		}
		rows = append(rows, []string{"Not in ModelPack:", l.What + ": " + where})
	}
	return rows
}

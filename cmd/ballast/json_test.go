package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/manualtest"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/installer/node"
	"github.com/ballast-dev/ballast/cmd/internal/installer/setup"
)

// results are what the commands print with -o json.
var results = []struct {
	commands string
	is       string
	value    any
}{
	{"ls", "a list", []wire.Image{}},
	{"inspect", "an object: the fields of ls, and those below. With `--remote`, `state` is `remote`, `config` and `table` are empty, and times are zero", wire.Detail{}},
	{"why", "an object: the fields of ls, and", wire.Why{}},
	{"resolve", "an object", wire.Resolved{}},
	{"prefetch, pull", "a line for each event, the last with status success, started or error", wire.Event{}},
	{"prefetch --dry-run, pull --dry-run", "a list", []fetchPlan{}},
	{"import, import ollama", "events as for prefetch, a line each, the last with", wire.ImportEvent{}},
	{"seed", "events as for prefetch, and an object for each model, a line each", wire.Imported{}},
	{"status", "an object", wire.Status{}},
	{"df", "an object, with `--verbose` also `models`, a list of the objects of ls", wire.Usage{}},
	{"pin, pin ls", "a list", []wire.Pin{}},
	{"gc", "an object", wire.GCResult{}},
	{"verify", "an object", wire.VerifyResult{}},
	{"verify --signatures", "an object", wire.Signatures{}},
	{"mount, path", "an object", wire.Mount{}},
	{"mount ls", "a list", []wire.Mount{}},
	{"pause, resume", "an object", wire.PauseRequest{}},
	{"convert", "lines of progress, then an object", conversion{}},
	{"digest", "an object", seen{}},
	{"setup, doctor --fix --dry-run", "an object", setup.Plan{}},
	{"doctor", "a list", node.Findings{}},
}

// shape returns lines with the fields of a type in JSON, and the types of those in others. skip are fields that another
// result has described.
func shape(t reflect.Type, prefix string, skip []string) (lines []string) {
	for t.Kind() == reflect.Slice || t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			for _, line := range shape(f.Type, prefix, skip) {
				if f.Type.Kind() == reflect.Pointer && !strings.HasPrefix(line, " ") && !strings.HasSuffix(line, ", can be absent") {
					line += ", can be absent"
				}
				lines = append(lines, line)
			}
			continue
		case !f.IsExported() || name == "-" || slices.Contains(skip, prefix+name):
			continue
		}
		if name == "" {
			name = f.Name
		}
		text, inner := kindOf(f.Type)
		if strings.Contains(options, "omit") {
			text += ", can be absent"
		}
		lines = append(lines, fmt.Sprintf("%s%s: %s", prefix, name, text))
		if inner != nil && strings.Count(prefix, "  ") < 2 {
			lines = append(lines, shape(inner, prefix+"  ", nil)...)
		}
	}
	return lines
}

// kindOf describes a type in JSON, and returns that of the objects in it, if there are any.
func kindOf(t reflect.Type) (text string, inner reflect.Type) {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return "time (RFC 3339)", nil
	case t == reflect.TypeFor[time.Duration]():
		return "number of nanoseconds", nil
	case t == reflect.TypeFor[json.RawMessage]():
		return "any JSON", nil
	case t == reflect.TypeFor[[]byte]():
		return "text in base64", nil
	}
	switch t.Kind() {
	case reflect.Pointer:
		return kindOf(t.Elem())
	case reflect.Slice:
		text, inner = kindOf(t.Elem())
		return "list of " + text, inner
	case reflect.Map:
		text, inner = kindOf(t.Elem())
		return "object with values: " + text, inner
	case reflect.Struct:
		return "object", t
	case reflect.String:
		if strings.HasSuffix(t.String(), "digest.Digest") {
			return "digest", nil
		}
		return "text", nil
	case reflect.Bool:
		return "true or false", nil
	}
	return "number", nil
}

// TestJSON compares the page about JSON with the results of the commands; -update writes it.
func TestJSON(t *testing.T) {
	var b strings.Builder
	var image []string
	for _, line := range shape(reflect.TypeFor[wire.Image](), "", nil) {
		name, _, _ := strings.Cut(line, ":")
		image = append(image, name)
	}
	for _, r := range results {
		var skip []string
		switch r.value.(type) {
		case wire.Detail:
			skip = append(slices.Clone(image), "documents") // --origin prints them
		case wire.Why:
			skip = image
		case wire.ImportEvent:
			for f := range reflect.TypeFor[wire.Event]().Fields() {
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				skip = append(skip, name)
			}
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s%s:\n\n```text\n%s\n```\n", r.commands, strings.ToUpper(r.is[:1]), r.is[1:], strings.Join(shape(reflect.TypeOf(r.value), "", skip), "\n"))
	}
	if err := manualtest.Update("../../contrib/docs/json.md", "json", strings.TrimPrefix(b.String(), "\n"), *update); err != nil {
		t.Error(err)
	}
}

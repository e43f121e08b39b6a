package carton

import (
	"fmt"

	"github.com/containerd/errdefs"
)

// MaxInfoSize limits carton.toml, in bytes.
const MaxInfoSize = 1 << 20 // 1 MiB

// specVersion is the supported version of the specification.
const specVersion = 1

// Info is the content of carton.toml. Fields that are not set are empty.
type Info struct {
	Name             string
	ShortDescription string
	Description      string // Markdown
	License          string // usually an SPDX expression
	Repository       string // of the code that packed the model
	Homepage         string
	Platforms        []string // target triples; empty means any
	Inputs, Outputs  []string // types, such as "float32" or "string"
	Runner           Runner
}

// Runner describes what runs the model.
type Runner struct {
	Name             string
	FrameworkVersion string // a requirement on a semantic version
}

// ParseInfo parses a carton.toml. It returns errdefs.ErrInvalidArgument, naming the field, for a
// missing or invalid field, and errdefs.ErrNotImplemented for another version.
func ParseInfo(p []byte) (*Info, error) {
	t, err := parseTable(nameInfo, p, MaxInfoSize)
	if err != nil {
		return nil, err
	}
	v := t.count("spec_version", true)
	if *t.err == nil && v != specVersion {
		return nil, fmt.Errorf("unsupported carton spec_version %d: %w", v, errdefs.ErrNotImplemented)
	}
	info := &Info{
		Name:             t.text("model_name", false),
		ShortDescription: t.text("short_description", false),
		Description:      t.text("model_description", false),
		License:          t.text("license", false),
		Repository:       t.text("repository", false),
		Homepage:         t.text("homepage", false),
		Platforms:        t.texts("required_platforms", false),
		Inputs:           dtypes(t, "input"),
		Outputs:          dtypes(t, "output"),
		Runner:           parseRunner(t.table("runner", true)),
	}
	for _, s := range info.Platforms {
		if !triple.MatchString(s) {
			t.fail("required_platforms", "%.100q is no target triple", s)
		}
	}
	return info, *t.err
}

// dtypes returns the types of inputs or outputs.
func dtypes(t table, key string) (all []string) {
	for _, t := range t.tables(key) {
		all = append(all, t.text("dtype", true))
	}
	return all
}

func parseRunner(t table) Runner {
	r := Runner{
		Name:             t.text("runner_name", true),
		FrameworkVersion: t.text("required_framework_version", true),
	}
	if r.Name == "" {
		t.fail("runner_name", "is empty")
	}
	if !isVersionReq(r.FrameworkVersion) {
		t.fail("required_framework_version", "%.100q is no version requirement", r.FrameworkVersion)
	}
	return r
}

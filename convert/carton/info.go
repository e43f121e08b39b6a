package carton

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
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
	t.version("spec_version", specVersion)
	info := &Info{
		Name:             get[string](t, "model_name", false),
		ShortDescription: get[string](t, "short_description", false),
		Description:      get[string](t, "model_description", false),
		License:          get[string](t, "license", false),
		Repository:       get[string](t, "repository", false),
		Homepage:         get[string](t, "homepage", false),
		Platforms:        list[string](t, "required_platforms", false),
		Inputs:           dtypes(t, "input"),
		Outputs:          dtypes(t, "output"),
		Runner:           parseRunner(t.table("runner")),
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
	for i, m := range list[map[string]any](t, key, false) {
		one := table{path: fmt.Sprintf("%s: %s %d", t.path, key, i), m: m, err: t.err}
		all = append(all, get[string](one, "dtype", true))
	}
	return all
}

func parseRunner(t table) Runner {
	r := Runner{
		Name:             get[string](t, "runner_name", true),
		FrameworkVersion: get[string](t, "required_framework_version", true),
	}
	if r.Name == "" {
		t.fail("runner_name", "is empty")
	}
	if !isVersionReq(r.FrameworkVersion) {
		t.fail("required_framework_version", "%.100q is no version requirement", r.FrameworkVersion)
	}
	return r
}

// triple matches the form of a target triple: architecture, vendor, system, environment, format.
// Their values are not checked, because only a runner uses them.
var triple = regexp.MustCompile(`^[a-z0-9_.+]{1,32}(-[a-z0-9_.+]{1,32}){0,4}$`)

const (
	versionNumber = `(?:0|[1-9][0-9]{0,18})`
	versionAny    = `[*xX]`
	versionWord   = `[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*`
)

// comparator matches one comparator of a version requirement.
// https://docs.rs/semver/1.0.16/semver/struct.VersionReq.html
var comparator = regexp.MustCompile(`^(?:=|>=?|<=?|~|\^)? *` + versionNumber +
	`(?:\.` + versionAny + `(?:\.` + versionAny + `)?` +
	`|\.` + versionNumber + `(?:\.` + versionAny + `|\.` + versionNumber + `(?:-` + versionWord + `)?(?:\+` + versionWord + `)?)?)?$`)

// maxComparators limits the comparators of a requirement.
const maxComparators = 32

// isVersionReq reports whether s is a requirement on a semantic version.
func isVersionReq(s string) bool {
	s = strings.Trim(s, " ")
	if slices.Contains([]string{"*", "x", "X"}, s) {
		return true
	}
	parts := strings.Split(s, ",")
	return len(parts) <= maxComparators && !slices.ContainsFunc(parts, func(p string) bool {
		return len(p) > 256 || !comparator.MatchString(strings.Trim(p, " "))
	})
}

package carton

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/ballast-dev/ballast/convert"
)

// MaxInfoSize limits carton.toml, in bytes.
const MaxInfoSize = 1 << 20 // 1 MiB

// specVersion is the supported version of the specification.
const specVersion = 1

// Info is the content of carton.toml in ModelPack's terms.
type Info struct {
	Config convert.Config
	Runner convert.Runner
}

// formats are the weight formats of runners with another name.
var formats = map[string]string{"torchscript": "pt"}

// ParseInfo parses a carton.toml. It returns errdefs.ErrInvalidArgument, naming the field, for a
// missing or invalid field, and errdefs.ErrNotImplemented for another version.
func ParseInfo(p []byte) (*Info, error) {
	t, err := parseTable(nameInfo, p, MaxInfoSize)
	if err != nil {
		return nil, err
	}
	t.version("spec_version", specVersion)
	r := convert.Runner{Platforms: list[string](t, "required_platforms", false)}
	for _, s := range r.Platforms {
		if !triple().MatchString(s) {
			t.fail("required_platforms", "%.100q is not a target triple", s)
		}
	}
	runner := t.table("runner")
	if r.Name = get[string](runner, "runner_name", true); r.Name == "" {
		runner.fail("runner_name", "is empty")
	}
	if r.FrameworkVersion = get[string](runner, "required_framework_version", true); !isVersionReq(r.FrameworkVersion) {
		runner.fail("required_framework_version", "%.100q is not a version requirement", r.FrameworkVersion)
	}
	cfg := convert.Config{
		Descriptor: convert.ModelDescriptor{
			Name:        get[string](t, "model_name", false),
			Title:       get[string](t, "short_description", false),
			Description: get[string](t, "model_description", false),
			DocURL:      get[string](t, "homepage", false),
			SourceURL:   get[string](t, "repository", false),
		},
		ModelFS: convert.ModelFS{Type: "layers"},
		Config:  convert.ModelConfig{Format: cmp.Or(formats[r.Name], r.Name)},
	}
	if license := get[string](t, "license", false); license != "" {
		cfg.Descriptor.Licenses = []string{license}
	}
	in, out := modalities(t, "input"), modalities(t, "output")
	if in != nil || out != nil {
		cfg.Config.Capabilities = &convert.Capabilities{InputTypes: in, OutputTypes: out}
	}
	return &Info{cfg, r}, *t.err
}

// modalities returns the types of inputs or outputs: text for strings, otherwise other.
func modalities(t table, key string) (all []string) {
	for i, m := range list[map[string]any](t, key, false) {
		one := table{path: fmt.Sprintf("%s: %s %d", t.path, key, i), m: m, err: t.err}
		modality := "other"
		if get[string](one, "dtype", true) == "string" {
			modality = "text"
		}
		if !slices.Contains(all, modality) {
			all = append(all, modality)
		}
	}
	return all
}

// triple matches the form of a target triple: architecture, vendor, system, environment, format.
// Their values are not checked, because only a runner uses them.
var triple = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9_.+]{1,32}(-[a-z0-9_.+]{1,32}){0,4}$`) })

// The parts of a requirement on a semantic version.
// https://docs.rs/semver/1.0.16/semver/struct.VersionReq.html
const (
	versionNumber = `(?:0|[1-9][0-9]{0,18})`
	versionAny    = `[*xX]`
	versionWord   = `[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*`
	comparator    = ` *(?:=|>=?|<=?|~|\^)? *` + versionNumber +
		`(?:\.` + versionAny + `(?:\.` + versionAny + `)?` +
		`|\.` + versionNumber + `(?:\.` + versionAny + `|\.` + versionNumber + `(?:-` + versionWord + `)?(?:\+` + versionWord + `)?)?)? *`
)

// versionReq, like triple, is compiled when it is needed: they take 300 kB.
var versionReq = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?: *` + versionAny + ` *|` + comparator + `(?:,` + comparator + `)*)$`)
})

// maxComparators limits the comparators of a requirement.
const maxComparators = 32

// isVersionReq reports whether s is a requirement on a semantic version.
func isVersionReq(s string) bool {
	return strings.Count(s, ",") < maxComparators && versionReq().MatchString(s)
}

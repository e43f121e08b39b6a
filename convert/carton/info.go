package carton

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// MaxInfoSize is the largest carton.toml read, in bytes.
const MaxInfoSize = 1 << 20 // 1 MiB

// specVersion is the version of the specification that is understood.
const specVersion = 1

// Info is what carton.toml says. Fields that are not set are empty.
type Info struct {
	Name             string
	ShortDescription string
	Description      string // Markdown
	License          string // an SPDX expression, as a rule
	Repository       string // of the code that packed the model
	Homepage         string
	Platforms        []string // target triples; none means any
	Inputs, Outputs  []Spec
	SelfTests        []Example
	Examples         []Example
	Runner           Runner
}

// A Spec describes an input or an output.
type Spec struct {
	Name         string
	DType        string // one of "float32", "float64", "string", "int8" … "uint64"
	Shape        Shape
	Description  string
	InternalName string
}

// A Shape is the shape of a tensor as far as it is fixed: either one symbol for all of it, of
// which "*" is any shape, or its dimensions. Neither is a scalar.
type Shape struct {
	Symbol string
	Dims   []Dim
}

// A Dim is a dimension: a symbol, of which "*" is any size, or a size.
type Dim struct {
	Symbol string
	Size   int64
}

// An Example is an example or a self-test. The values are references, to a tensor
// ("@tensor_data/name") or a file ("@misc/path").
type Example struct {
	Name        string
	Description string
	Inputs      map[string]string
	Outputs     map[string]string
}

// Runner says what runs the model.
type Runner struct {
	Name             string
	FrameworkVersion string // a requirement on a semantic version
	CompatVersion    int64
	Opts             map[string]any // any TOML: they are between the model and its runner
}

// Prefixes of references.
const (
	refTensor = "@" + dirTensors
	refMisc   = "@" + dirMisc
)

// widths are the types of a tensor and the bytes of one of its values; zero if they differ.
var widths = map[string]int64{
	"float32": 4, "float64": 8, "string": 0,
	"int8": 1, "int16": 2, "int32": 4, "int64": 8,
	"uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
}

// ParseInfo parses a carton.toml. It returns errdefs.ErrInvalidArgument, naming the field, for a
// file that breaks a rule of the specification, and errdefs.ErrNotImplemented for one of another
// version. Whether references lead somewhere is not known here.
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
		Inputs:           parseSpecs(t, "input"),
		Outputs:          parseSpecs(t, "output"),
		Runner:           parseRunner(t.table("runner", true)),
	}
	for _, s := range t.tables("self_test") {
		info.SelfTests = append(info.SelfTests, parseExample(s, "expected_out", false, refTensor))
	}
	for _, e := range t.tables("example") {
		info.Examples = append(info.Examples, parseExample(e, "sample_out", true, refTensor, refMisc))
	}
	for _, s := range info.Platforms {
		if !triple.MatchString(s) {
			t.fail("required_platforms", "%.100q is no target triple", s)
		}
	}
	if len(info.SelfTests)+len(info.Examples) > 0 && len(info.Inputs)+len(info.Outputs) == 0 {
		t.fail("input", "is missing, but there are self-tests or examples")
	}
	return info, *t.err
}

func parseSpecs(t table, key string) []Spec {
	var all []Spec
	seen := map[string]bool{}
	for _, t := range t.tables(key) {
		s := Spec{
			Name:         t.text("name", true),
			DType:        t.text("dtype", true),
			Shape:        parseShape(t),
			Description:  t.text("description", false),
			InternalName: t.text("internal_name", false),
		}
		if _, ok := widths[s.DType]; !ok {
			t.fail("dtype", "unknown type %.100q", s.DType)
		}
		if seen[s.Name] {
			t.fail("name", "%.100q is there twice", s.Name)
		}
		seen[s.Name] = true
		all = append(all, s)
	}
	return all
}

func parseShape(t table) Shape {
	switch v := t.m["shape"].(type) {
	case nil:
		t.fail("shape", "is missing")
	case string:
		if v == "" {
			t.fail("shape", "is an empty symbol")
		}
		return Shape{Symbol: v}
	case []any:
		s := Shape{}
		for i, d := range v {
			switch d := d.(type) {
			case string:
				s.Dims = append(s.Dims, Dim{Symbol: d})
			case int64:
				if d < 0 {
					t.fail("shape", "dimension %d is negative", i)
				}
				s.Dims = append(s.Dims, Dim{Size: d})
			default:
				t.fail("shape", "dimension %d is neither a symbol nor an integer", i)
			}
		}
		return s
	default:
		t.fail("shape", "is neither a symbol nor a list")
	}
	return Shape{}
}

func parseExample(t table, outputs string, required bool, prefixes ...string) Example {
	return Example{
		Name:        t.text("name", false),
		Description: t.text("description", false),
		Inputs:      t.refs("inputs", true, prefixes...),
		Outputs:     t.refs(outputs, required, prefixes...),
	}
}

func parseRunner(t table) Runner {
	r := Runner{
		Name:             t.text("runner_name", true),
		FrameworkVersion: t.text("required_framework_version", true),
		CompatVersion:    t.count("runner_compat_version", false), // writers fill it in
		Opts:             t.table("opts", false).m,
	}
	if r.Name == "" {
		t.fail("runner_name", "is empty")
	}
	if !isVersionReq(r.FrameworkVersion) {
		t.fail("required_framework_version", "%.100q is no version requirement", r.FrameworkVersion)
	}
	return r
}

// resolve checks that the references lead to a tensor of the index, or to a file.
func (info *Info) resolve(tensors map[string]*tensor, files map[string]int) error {
	for what, list := range map[string][]Example{"self_test": info.SelfTests, "example": info.Examples} {
		for i, e := range list {
			for _, ref := range slices.Sorted(maps.Values(e.Inputs)) {
				if err := resolve(ref, tensors, files); err != nil {
					return fmt.Errorf("%s: %s %d: inputs: %w", nameInfo, what, i, err)
				}
			}
			for _, ref := range slices.Sorted(maps.Values(e.Outputs)) {
				if err := resolve(ref, tensors, files); err != nil {
					return fmt.Errorf("%s: %s %d: outputs: %w", nameInfo, what, i, err)
				}
			}
		}
	}
	return nil
}

func resolve(ref string, tensors map[string]*tensor, files map[string]int) error {
	if name, ok := strings.CutPrefix(ref, refTensor); ok {
		if tensors[name] == nil {
			return invalid("%.200q: no such tensor in %s", ref, nameIndex)
		}
		return nil
	}
	if _, ok := files[strings.TrimPrefix(ref, "@")]; !ok {
		return invalid("%.200q: no such file", ref)
	}
	return nil
}

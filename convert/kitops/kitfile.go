package kitops

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A kitfile has the used fields of a Kitfile.
// https://github.com/kitops-ml/kitops/blob/v1.6.0/pkg/artifact/kitfile.go
type kitfile struct {
	model   string // the path of the model, or the ModelKit that contains it
	entries map[digest.Digest]entry
	next    map[string][]entry // those without digest that no layer has yet, by the kind in the media type
	config  convert.Config
}

// An entry is the entry of a layer in a Kitfile.
type entry struct {
	path   string
	digest digest.Digest // empty in early kits
	diffID digest.Digest // may be empty
}

// lists are the members with a list of entries, and the kinds of their layers. Prompts have the
// type of code.
var lists = []struct{ member, kind string }{
	{"code", "code"}, {"datasets", "dataset"}, {"docs", "docs"}, {"prompts", "code"}, {"mcpServers", "mcpb"},
}

func parseKitfile(p []byte) (*kitfile, error) {
	o, err := convert.ParseObject(p)
	if err != nil {
		return nil, err
	}
	model, pkg := o.Object("model"), o.Object("package")
	k := &kitfile{model: model.String("path"), entries: map[digest.Digest]entry{}, next: map[string][]entry{}}
	licenses := []string{pkg.String("license"), model.String("license")}
	add := func(kind string, e *convert.Object) error {
		if e.String("remotePath") != "" {
			return nil // it is not in a layer
		}
		licenses = append(licenses, e.String("license"))
		parsed, err := parseEntry(e)
		if parsed.digest == "" {
			k.next[kind] = append(k.next[kind], parsed)
		} else if _, ok := k.entries[parsed.digest]; !ok {
			k.entries[parsed.digest] = parsed
		}
		return err
	}
	if k.model != "" {
		if err := add("model", model); err != nil {
			return nil, err
		}
	}
	for _, e := range model.Objects("parts") {
		if err := add("modelpart", e); err != nil {
			return nil, err
		}
	}
	for _, l := range lists {
		for _, e := range o.Objects(l.member) {
			if err := add(l.kind, e); err != nil {
				return nil, err
			}
		}
	}
	slices.Sort(licenses)
	k.config = convert.Config{
		Descriptor: convert.ModelDescriptor{
			Authors:     pkg.Strings("authors"),
			Name:        pkg.String("name"),
			Version:     pkg.String("version"),
			Description: pkg.String("description"),
			Licenses:    slices.DeleteFunc(slices.Compact(licenses), func(s string) bool { return s == "" }),
		},
		Config: convert.ModelConfig{Format: model.String("format")},
	}
	return k, nil
}

func parseEntry(o *convert.Object) (entry, error) {
	e := entry{path: o.String("path")}
	for _, f := range []struct {
		key string
		d   *digest.Digest
	}{{"digest", &e.digest}, {"diffId", &e.diffID}} {
		s := o.String(f.key)
		if s == "" {
			continue
		}
		d, err := verify.ParseDigest(s)
		if err != nil {
			return e, fmt.Errorf("%s of %q: %w", f.key, e.path, err)
		}
		*f.d = d
	}
	return e, nil
}

// stripped returns the Kitfile of a config, without the digests added by packing.
func stripped(p []byte) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(p))
	dec.UseNumber() // keeps numbers as written
	var all map[string]any
	if err := dec.Decode(&all); err != nil {
		return nil, fmt.Errorf("the Kitfile: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	strip := func(v any) {
		if e, ok := v.(map[string]any); ok {
			delete(e, "digest")
			delete(e, "diffId")
		}
	}
	each := func(v any) {
		list, _ := v.([]any)
		for _, e := range list {
			strip(e)
		}
	}
	strip(all["model"])
	if model, ok := all["model"].(map[string]any); ok {
		each(model["parts"])
	}
	for _, l := range lists {
		each(all[l.member])
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(all); err != nil { // sorted by key
		return nil, fmt.Errorf("the Kitfile: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return out.Bytes(), nil
}

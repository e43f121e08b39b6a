package convert

import (
	"encoding/json"
	"reflect"
	"strings"
	"unicode"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// keys are the keys of a JSON object that encoding/json decodes into a struct, as containerd does. It takes a key in
// any letter case for that of a field, and the last of several, so a reader of exact keys would see another document.
// Such an object is ambiguous.
type keys struct {
	names map[string]string // the exact key by its folded form
	of    map[string]*keys  // by exact key: those of its object, or of the objects in its list; nil for maps and other values
}

// The keys of the documents that both ballast and containerd read.
var (
	manifestKeys = keysOf(
		reflect.TypeFor[ocispec.Manifest](), reflect.TypeFor[ocispec.Index](),
		// Of schema 1, which containerd looks for in each manifest.
		// https://github.com/containerd/containerd/blob/v2.4.2/core/images/image.go
		reflect.TypeFor[struct {
			FSLayers json.RawMessage `json:"fsLayers"`
		}](),
	)
	configKeys = keysOf(reflect.TypeFor[ocispec.Image]())
)

// keysOf returns the keys of structs that are decoded from the same object; nil for other types.
func keysOf(types ...reflect.Type) *keys {
	k := &keys{names: map[string]string{}, of: map[string]*keys{}}
	for _, t := range types {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
			return nil
		}
		for _, f := range reflect.VisibleFields(t) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" || name == "-" || !f.IsExported() { // an embedded struct has no name, its fields are visible
				continue
			}
			k.names[fold(name)] = name
			if sub := keysOf(f.Type); sub != nil {
				k.of[name] = sub
			}
		}
	}
	return k
}

// fold returns the same string for all strings that are equal under Unicode case folding (strings.EqualFold).
func fold(s string) string {
	return strings.Map(func(r rune) rune {
		for r > unicode.MaxASCII { // to the smallest of its equals, which can be ASCII: "ſ" equals "S"
			next := unicode.SimpleFold(r)
			if next <= r {
				r = next
				break
			}
			r = next
		}
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, s)
}

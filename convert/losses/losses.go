package losses

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert"
)

// A Loss is information in an origin that has no place in a converted image.
type Loss struct {
	What string
	Kept string // where it is kept; empty if it is lost
}

// Limits of the report for one origin.
const (
	maxLosses = 100
	maxKey    = 120 // bytes of a key
	maxDepth  = 3   // nested objects whose members are named individually
)

// Where documents are kept.
const (
	originManifest = "origin manifest"
	originConfig   = "origin config"
)

// A finder collects the losses of one origin.
type finder struct {
	manifest, conf string // the places of the documents
	list           []Loss
	more           int
}

// Of returns the losses of an origin by the rules of its format. docs are the documents that
// image.Documents returns. Documents that cannot be parsed have no losses.
func Of(r Rules, docs convert.Documents) []Loss {
	x := &finder{manifest: cmp.Or(r.Manifest, originManifest), conf: cmp.Or(r.Config, originConfig)}
	p := docs.Manifest
	if docs.Child != nil {
		p = docs.Child
	}
	if m, err := convert.ParseManifest(p); err == nil {
		x.document(p, "manifest", x.manifest, Rules{Skip: manifestKeys, Keys: r.Annotations})
		x.layers(p, m)
		if r.More != nil {
			for _, l := range r.More(m) {
				x.add(l)
			}
		}
	}
	if docs.Config != nil {
		x.document(docs.Config, "config", x.conf, r)
	}
	for _, l := range r.Always {
		x.add(l)
	}
	if x.more > 0 {
		x.list = append(x.list, Loss{What: fmt.Sprintf("%d more of this kind", x.more), Kept: x.manifest})
	}
	return x.list
}

func (x *finder) add(l Loss) {
	if len(x.list) == maxLosses {
		x.more++
		return
	}
	x.list = append(x.list, l)
}

// document adds the members of a JSON object that have no place in the Rules.
func (x *finder) document(p []byte, name, kept string, r Rules) {
	if _, err := convert.ParseObject(p); err != nil {
		return
	}
	var walk func(prefix string, raw json.RawMessage, depth int)
	walk = func(prefix string, raw json.RawMessage, depth int) {
		var o map[string]json.RawMessage
		if json.Unmarshal(raw, &o) != nil {
			return
		}
		for _, k := range slices.Sorted(maps.Keys(o)) {
			path, v := prefix+k, o[k]
			switch note, ok := r.Keys[path]; {
			case slices.Contains(r.Skip, path) || empty(v):
			case ok && note == "":
				x.reworded(name, path, v, kept, r)
			case ok:
				x.add(Loss{name + " " + path, note})
			case v[0] == '{' && depth < maxDepth:
				walk(path+".", v, depth+1)
			default:
				x.add(Loss{name + " " + Cut(path), kept})
			}
		}
	}
	walk("", p, 1)
}

// empty reports whether a value has no information.
func empty(v json.RawMessage) bool {
	switch string(v) {
	case "null", `""`, "[]", "{}":
		return true
	}
	return false
}

// reworded adds the loss of a value that has a place, but is kept with other words.
func (x *finder) reworded(name, path string, v json.RawMessage, kept string, r Rules) {
	write, ok := r.Words[path]
	if !ok {
		return
	}
	var s string
	if json.Unmarshal(v, &s) == nil {
		if got := write(s); got != s && s != "unknown" {
			x.add(Loss{fmt.Sprintf("%s %s in its original spelling, %.60q", name, path, s), kept})
		}
		return
	}
	var all []string
	if json.Unmarshal(v, &all) != nil {
		return
	}
	for _, s := range all {
		if write(s) != s {
			x.add(Loss{fmt.Sprintf("%s %s: %.60q", name, path, s), kept})
		}
	}
}

// layers adds the members of layers that have no place, each with the number of layers that have
// it.
func (x *finder) layers(p []byte, m *convert.Manifest) {
	var doc struct {
		Layers []map[string]json.RawMessage `json:"layers"`
	}
	if json.Unmarshal(p, &doc) != nil {
		return
	}
	count := map[string]int{}
	for _, l := range doc.Layers {
		for k, v := range l {
			if k == "annotations" || empty(v) || slices.Contains(layerKeys, k) {
				continue
			}
			count[k]++
		}
	}
	for _, l := range m.Layers {
		for k := range l.Annotations {
			if !slices.Contains(layerAnnotations, k) {
				count["annotation "+k]++
			}
		}
	}
	for _, k := range slices.Sorted(maps.Keys(count)) {
		x.add(Loss{fmt.Sprintf("%s of %s", Cut(k), Layers(count[k])), x.manifest})
	}
}

// Layers returns the text for a number of layers.
func Layers(n int) string {
	if n == 1 {
		return "1 layer"
	}
	return fmt.Sprintf("%d layers", n)
}

// Cut shortens and cleans a text of the origin for display.
func Cut(s string) string {
	if len(s) > maxKey {
		s = s[:maxKey] + "…"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, s)
}

package losses

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
)

// A Loss is something that an origin says.
type Loss struct {
	What string `json:"what"`
	Kept string `json:"kept,omitempty"` // where it is; empty if it is gone
}

// Limits of what is said of one origin.
const (
	maxLosses = 100
	maxKey    = 120 // bytes of a key
	maxDepth  = 3   // objects in objects whose members are named one by one
)

// Where documents are kept.
const (
	originManifest = "origin manifest"
	originConfig   = "origin config"
)

// A finder collects the losses of one origin.
type finder struct {
	rules          rules
	manifest, conf string // where the documents are
	list           []Loss
	more           int
}

// Of returns the losses of an origin, whose documents image.Documents returns. Documents that can
// not be parsed say nothing.
func Of(f mediatype.Format, docs convert.Documents) []Loss {
	if strings.HasPrefix(string(f), string(mediatype.FormatOllamaList)) {
		f = mediatype.FormatOllama
	}
	x := &finder{rules: formats[f], manifest: originManifest, conf: originConfig}
	if x.rules.manifest != "" {
		x.manifest = x.rules.manifest
	}
	if x.rules.config != "" {
		x.conf = x.rules.config
	}
	p := docs.Manifest
	if docs.Child != nil {
		p = docs.Child
	}
	if m, err := convert.ParseManifest(p); err == nil {
		x.document(p, "manifest", x.manifest, rules{skip: manifestKeys, keys: x.rules.annotations})
		x.layers(p, m)
		if f == mediatype.FormatOllama {
			x.unused(m)
		}
	}
	if docs.Config != nil {
		x.document(docs.Config, "config", x.conf, x.rules)
	}
	for _, l := range x.rules.always {
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

// document adds the members of a JSON object that the rules have no place for.
func (x *finder) document(p []byte, name, kept string, r rules) {
	if _, err := convert.ParseObject(p); err != nil {
		return
	}
	var walk func(prefix string, raw json.RawMessage, depth int)
	walk = func(prefix string, raw json.RawMessage, depth int) {
		var o map[string]json.RawMessage
		if json.Unmarshal(raw, &o) != nil {
			return
		}
		keys := make([]string, 0, len(o))
		for k := range o {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			path, v := prefix+k, o[k]
			switch note, ok := r.keys[path]; {
			case slices.Contains(r.skip, path) || empty(v):
			case ok && note == "":
				x.reworded(name, path, v, kept, r)
			case ok:
				x.add(Loss{name + " " + path, note})
			case v[0] == '{' && depth < maxDepth:
				walk(path+".", v, depth+1)
			default:
				x.add(Loss{name + " " + cut(path), kept})
			}
		}
	}
	walk("", p, 1)
}

// empty reports whether a value says nothing.
func empty(v json.RawMessage) bool {
	switch string(v) {
	case "null", `""`, "[]", "{}":
		return true
	}
	return false
}

// reworded adds what is lost of a value that has a place, but not as it is written.
func (x *finder) reworded(name, path string, v json.RawMessage, kept string, r rules) {
	write, ok := r.words[path]
	if !ok {
		return
	}
	var s string
	if json.Unmarshal(v, &s) == nil {
		if got := write(s); got != s && s != "unknown" {
			x.add(Loss{fmt.Sprintf("%s %s as it is written, %.60q", name, path, s), kept})
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
	count, archives := map[string]int{}, 0
	for _, l := range doc.Layers {
		for k, v := range l {
			if k == "annotations" || empty(v) || slices.Contains(layerKeys, k) {
				continue
			}
			count[k]++
		}
	}
	for _, l := range m.Layers {
		if t, err := mediatype.Parse(l.MediaType); err == nil && t.Archive != "" {
			archives++
		}
		for k := range l.Annotations {
			if !slices.Contains(layerAnnotations, k) {
				count["annotation "+k]++
			}
		}
		if mediatype.Metadata(l.Annotations) != "" {
			count["owners in the file metadata"]++
		}
	}
	keys := make([]string, 0, len(count))
	for k := range count {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		x.add(Loss{fmt.Sprintf("%s of %s", cut(k), layersText(count[k])), x.manifest})
	}
	if archives > 0 {
		x.add(Loss{What: fmt.Sprintf("owners (uid, gid) of the files in %s that are archives", layersText(archives))})
	}
}

func layersText(n int) string {
	if n == 1 {
		return "1 layer"
	}
	return fmt.Sprintf("%d layers", n)
}

// unused adds the layers of an Ollama model that are no files.
func (x *finder) unused(m *convert.Manifest) {
	count := map[mediatype.Part]int{}
	ignored, templates := map[string]int{}, map[string]int{}
	for _, l := range m.Layers {
		t, err := mediatype.Parse(l.MediaType)
		if err != nil || t.Format != mediatype.FormatOllama {
			ignored[mediatype.Base(l.MediaType)]++
			continue
		}
		count[t.Part]++
		if params, err := mediatype.Params(l.MediaType); err == nil && t.Part == mediatype.PartTemplate {
			templates[params["name"]]++
		}
	}
	count[mediatype.PartTemplate] -= max(len(templates)-1, 0) // each name has a last one
	for _, base := range slices.Sorted(maps.Keys(ignored)) {
		x.add(Loss{What: fmt.Sprintf("content of %s of type %s, which Ollama ignores", layersText(ignored[base]), cut(base))})
	}
	if n := count[mediatype.PartEmbed]; n > 0 {
		x.add(Loss{What: "content of " + layersText(n) + " of embeddings, which Ollama does not use"})
	}
	for _, part := range []mediatype.Part{mediatype.PartDraft, mediatype.PartTemplate, mediatype.PartSystem, mediatype.PartMessages} {
		if n := count[part] - 1; n > 0 {
			x.add(Loss{What: fmt.Sprintf("content of %s of %s, of which Ollama uses the last only", layersText(n), part)})
		}
	}
	if count[mediatype.PartTensor] > 0 {
		x.add(Loss{"headers of the blobs of single tensors", "files ollama/headers.bin, ollama/headers.json"})
	}
	if count[mediatype.PartParams] > 1 {
		x.add(Loss{What: "layers of parameters one by one: they are merged"})
	}
}

func cut(s string) string {
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

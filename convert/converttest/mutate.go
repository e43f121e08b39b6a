package converttest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
)

// A change is a mutation of a manifest, an index or a config, that somebody might make who wants two readers to read
// two documents.
type change func(r *rand.Rand, all []*value, v *value)

// Mutate returns a JSON object with one to three changes: keys in other letter cases, twice, missing or unknown;
// other values, media types, platforms and digests; entries twice or in another order. The same random numbers give
// the same result.
func Mutate(r *rand.Rand, doc []byte) []byte {
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	root := parseValue(dec)
	for range 1 + r.IntN(3) {
		var all []*value
		root.walk(func(v *value) { all = append(all, v) })
		changes[r.IntN(len(changes))](r, all, all[r.IntN(len(all))])
	}
	var out bytes.Buffer
	root.write(&out)
	return out.Bytes()
}

// A value is a JSON value, whose keys are in order and can be there twice.
type value struct {
	kind byte // '{', '[', or 0 for another value
	keys []string
	of   []*value // in an object or a list
	text string   // of another value
}

func parseValue(dec *json.Decoder) *value {
	t, err := dec.Token()
	if err != nil {
		panic("converttest: a document to mutate is not JSON: " + err.Error())
	}
	d, ok := t.(json.Delim)
	if !ok {
		return &value{text: string(mustJSON(t))}
	}
	v := &value{kind: byte(d)}
	for dec.More() {
		if v.kind == '{' {
			k, _ := dec.Token()
			v.keys = append(v.keys, k.(string))
		}
		v.of = append(v.of, parseValue(dec))
	}
	_, _ = dec.Token()
	return v
}

func (v *value) walk(f func(*value)) {
	f(v)
	for _, sub := range v.of {
		sub.walk(f)
	}
}

func (v *value) clone() *value {
	c := *v
	c.keys, c.of = slices.Clone(v.keys), nil
	for _, sub := range v.of {
		c.of = append(c.of, sub.clone())
	}
	return &c
}

func (v *value) write(w *bytes.Buffer) {
	if v.kind == 0 {
		w.WriteString(v.text)
		return
	}
	w.WriteByte(v.kind)
	for i, sub := range v.of {
		if i > 0 {
			w.WriteByte(',')
		}
		if v.kind == '{' {
			fmt.Fprintf(w, "%s:", mustJSON(v.keys[i]))
		}
		sub.write(w)
	}
	w.WriteByte(v.kind + 2) // the closing bracket
}

// set sets a member of an object, or adds it.
func (v *value) set(key, text string) {
	i := slices.Index(v.keys, key)
	if i < 0 {
		v.keys, v.of = append(v.keys, key), append(v.of, nil)
		i = len(v.keys) - 1
	}
	v.of[i] = &value{text: text}
}

// respell returns a key that encoding/json takes for the same.
func respell(r *rand.Rand, key string) string {
	if key == "" {
		return key
	}
	i := r.IntN(len(key))
	c := key[i : i+1]
	switch other := strings.ToUpper(c); {
	case c == "s" && r.IntN(2) == 0:
		c = "ſ"
	case c == "k" && r.IntN(2) == 0:
		c = "\u212a"
	case other != c:
		c = other
	default:
		c = strings.ToLower(c)
	}
	return key[:i] + c + key[i+1:]
}

func pick(r *rand.Rand, from ...string) string { return from[r.IntN(len(from))] }

// others returns the text of an object, a list or another value that is none of the document.
func others(r *rand.Rand) string {
	return pick(r, `null`, `{}`, `[]`, `""`, `0`, `-1`, `1e3`, `true`, `"x"`, `[null]`, `{"digest":"x"}`, string(mustJSON(digest.FromString("evil"))))
}

var changes = []change{
	func(r *rand.Rand, _ []*value, v *value) { // a key in another spelling
		if len(v.keys) > 0 {
			i := r.IntN(len(v.keys))
			v.keys[i] = respell(r, v.keys[i])
		}
	},
	func(r *rand.Rand, all []*value, v *value) { // a key twice, the second in any spelling, before or after the first
		if len(v.keys) == 0 {
			return
		}
		i, at := r.IntN(len(v.keys)), r.IntN(len(v.keys)+1)
		key := v.keys[i]
		if r.IntN(4) > 0 {
			key = respell(r, key)
		}
		sub := all[r.IntN(len(all))].clone()
		if r.IntN(2) == 0 {
			sub = &value{text: others(r)}
		}
		v.keys, v.of = slices.Insert(v.keys, at, key), slices.Insert(v.of, at, sub)
	},
	func(r *rand.Rand, _ []*value, v *value) { // an entry less
		if len(v.of) > 0 {
			i := r.IntN(len(v.of))
			if v.kind == '{' {
				v.keys = slices.Delete(v.keys, i, i+1)
			}
			v.of = slices.Delete(v.of, i, i+1)
		}
	},
	func(r *rand.Rand, all []*value, v *value) { // an entry of a list twice, or in another place
		if v.kind == '[' && len(v.of) > 0 {
			v.of = slices.Insert(v.of, r.IntN(len(v.of)+1), v.of[r.IntN(len(v.of))].clone())
		}
	},
	func(r *rand.Rand, all []*value, v *value) { // another value
		*v = *all[r.IntN(len(all))].clone()
	},
	func(r *rand.Rand, _ []*value, v *value) { *v = value{text: others(r)} },
	func(r *rand.Rand, _ []*value, v *value) { // a key that nobody, or only a reader of images, knows
		if v.kind == '{' {
			v.set(pick(r, "x", "urls", "data", "Env", "env", "Labels", "config", "rootfs", "layers", "manifests", "subject", "fsLayers", "platform", "artifactType", "schemaVersion"), others(r))
		}
	},
	func(r *rand.Rand, _ []*value, v *value) { // another type
		if v.kind == '{' {
			v.set("mediaType", string(mustJSON(pick(r,
				"application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.v2+json",
				"application/vnd.docker.distribution.manifest.list.v2+json", "application/vnd.oci.image.config.v1+json", "application/vnd.oci.image.layer.v1.tar",
				"application/vnd.oci.image.layer.v1.tar+gzip", "application/vnd.oci.image.layer.ballast.blob.v1", "application/vnd.oci.image.layer.ballast.table.v1+json",
				"application/vnd.cncf.model.manifest.v1+json", "application/vnd.oci.image.manifest.v1+json; charset=utf-8", "APPLICATION/VND.OCI.IMAGE.INDEX.V1+JSON", "",
			))))
		}
	},
	func(r *rand.Rand, all []*value, v *value) { // a platform for an entry
		if v.kind != '{' {
			return
		}
		p := &value{kind: '{'}
		p.set(pick(r, "os", "os", "os", "OS"), string(mustJSON(pick(r, "linux", "Linux", "LINUX", "windows", "", "unknown", "linuX"))))
		p.set(pick(r, "architecture", "architecture", "Architecture"), string(mustJSON(pick(r, "amd64", "x86_64", "AMD64", "x86-64", "i386", "386", "arm64", "aarch64", "riscv64", ""))))
		if r.IntN(3) == 0 {
			p.set("variant", string(mustJSON(pick(r, "v1", "v2", "V1", "v8", ""))))
		}
		v.keys, v.of = append(v.keys, "platform"), append(v.of, p)
		if i := slices.Index(v.keys, "platform"); i < len(v.keys)-1 { // one that is there is replaced
			v.keys, v.of = slices.Delete(v.keys, i, i+1), slices.Delete(v.of, i, i+1)
		}
	},
}

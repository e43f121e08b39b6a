package converttest

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/opencontainers/go-digest"
)

// A CartonFile is a file of a carton.
type CartonFile struct {
	Path   string
	Data   []byte
	Method uint16   // in the archive: 0, 8 or 93
	URLs   []string // where it is; it is not in the archive then
	Link   string   // target, if it is a symbolic link in the archive; Data is what it leads to
}

// A Carton is a model in the Carton format.
type Carton struct {
	Files []CartonFile

	// Manifest and Links change these files, and Zip the archive, if not nil.
	Manifest func([]byte) []byte
	Links    func([]byte) []byte
	Zip      func(*Zip)
}

// With returns c with files replaced by path, or added.
func (c Carton) With(files ...CartonFile) Carton {
	c.Files = slices.Clone(c.Files)
	for _, f := range files {
		if i := slices.IndexFunc(c.Files, func(have CartonFile) bool { return have.Path == f.Path }); i >= 0 {
			c.Files[i] = f
		} else {
			c.Files = append(c.Files, f)
		}
	}
	return c
}

// ManifestBytes returns MANIFEST. Its digest is the model hash.
func (c Carton) ManifestBytes() []byte {
	var lines []string
	for _, f := range c.Files {
		lines = append(lines, fmt.Sprintf("%s=%s\n", f.Path, digest.FromBytes(f.Data).Encoded()))
	}
	slices.Sort(lines)
	p := []byte(strings.Join(lines, ""))
	if c.Manifest != nil {
		p = c.Manifest(p)
	}
	return p
}

// LinksBytes returns LINKS, nil if there is none.
func (c Carton) LinksBytes() []byte {
	urls := map[string][]string{}
	for _, f := range c.Files {
		if f.URLs != nil {
			urls[digest.FromBytes(f.Data).Encoded()] = f.URLs
		}
	}
	var p []byte
	if len(urls) > 0 {
		var b bytes.Buffer
		b.WriteString("version = 1\n\n[urls]\n")
		for _, d := range slices.Sorted(maps.Keys(urls)) {
			fmt.Fprintf(&b, "%s = [", d)
			for _, u := range urls[d] {
				fmt.Fprintf(&b, "%q, ", u)
			}
			b.WriteString("]\n")
		}
		p = b.Bytes()
	}
	if c.Links != nil {
		p = c.Links(p)
	}
	return p
}

// Bytes returns the archive: the files, then MANIFEST and LINKS.
func (c Carton) Bytes() []byte {
	var z Zip
	for _, f := range c.Files {
		switch {
		case f.URLs != nil:
		case f.Link != "":
			z.Entries = append(z.Entries, ZipEntry{Name: f.Path, Data: []byte(f.Link), Method: f.Method, Mode: 0o120777})
		default:
			z.Entries = append(z.Entries, ZipEntry{Name: f.Path, Data: f.Data, Method: f.Method})
		}
	}
	z.Entries = append(z.Entries, ZipEntry{Name: "MANIFEST", Data: c.ManifestBytes()})
	if p := c.LinksBytes(); p != nil {
		z.Entries = append(z.Entries, ZipEntry{Name: "LINKS", Data: p})
	}
	if c.Zip != nil {
		c.Zip(&z)
	}
	return z.Bytes()
}

// Hash returns the model hash.
func (c Carton) Hash() digest.Digest { return digest.FromBytes(c.ManifestBytes()) }

// Model returns all files of the mounted model, by path.
func (c Carton) Model() map[string]File {
	all := map[string]File{"MANIFEST": {"MANIFEST", c.ManifestBytes(), 0o644}}
	for _, f := range c.Files {
		all[f.Path] = File{f.Path, f.Data, 0o644}
	}
	return all
}

// CartonInfo is a carton.toml with every field that is read, and some that are not. What it refers
// to is in GoodCarton.
const CartonInfo = `# A comment.
spec_version = 1
model_name = "a_model"
short_description = "It answers every question."
model_description = """
It is shown in ![an image](@misc/input.png).
"""
license = "Apache-2.0"
repository = "https://example.com/packing"
homepage = "https://example.com/"
required_platforms = ["x86_64-unknown-linux-gnu", "aarch64-apple-darwin"]
not_known = { a.b = [1, { c = 2 }] }

[[input]]
name = "x"
dtype = "float32"
shape = ["batch_size", 3]
description = "Numbers"
internal_name = "scope/in_x:0"

[[input]]
name = "words"
dtype = "string"
shape = "*"

[[output]]
name = "out"
dtype = "int64"
shape = []

[[self_test]]
inputs = { x = "@tensor_data/numbers" }

[[example]]
inputs = { x = "@misc/input.png" }
sample_out = { out = "@misc/output.mp3" }

[runner]
runner_name = "torchscript"
required_framework_version = "=1.12.1"
runner_compat_version = 2
not_known = 1

[runner.opts]
num_threads = 4
scale = 0.5
device = "cpu"
fast = true
`

// cartonIndex is the tensor_data/index.toml of GoodCarton. Only a runner reads it.
const cartonIndex = `[[tensor]]
name = "numbers"
dtype = "float32"
shape = [2, 3]
file = "numbers.bin"
`

// GoodCarton returns a carton with members of all methods, symbolic links, empty files, and the given
// weights in model/weights.bin (stored) and model/weights.zst.bin (zstd).
func GoodCarton(weights []byte) Carton {
	text := bytes.Repeat([]byte("the same line again\n"), 2000)
	return Carton{Files: []CartonFile{
		{Path: "carton.toml", Data: []byte(CartonInfo), Method: 93},
		{Path: "model/a=b.txt", Data: []byte("the path has an equals sign\n"), Method: 8},
		{Path: "model/empty"},
		{Path: "model/code/run.py", Data: text, Method: 8},
		{Path: "model/link.py", Data: text, Link: "code/again.py"},
		{Path: "model/code/again.py", Data: text, Link: "run.py"},
		{Path: "model/weights.bin", Data: weights},
		{Path: "model/weights.zst.bin", Data: slices.Concat(weights, text), Method: 93},
		{Path: "misc/input.png", Data: []byte("\x89PNG"), Method: 93},
		{Path: "misc/output.mp3", Data: []byte("ID3")},
		{Path: "tensor_data/index.toml", Data: []byte(cartonIndex), Method: 93},
		{Path: "tensor_data/numbers.bin", Data: make([]byte, 24), Method: 93},
		{Path: "tensor_data/none.bin"},
	}}
}

// CartonArtifact makes an artifact with a carton as its only layer, as a pusher of files does.
func CartonArtifact(c Carton) *Built {
	b := newBuilder("carton", mediatype.FormatCarton, mediatype.OCIManifest)
	b.layer(mediatype.OCILayer, c.Bytes(), map[string]string{mediatype.AnnotationTitle: "model.carton"})
	b.config(mediatype.OCIEmpty, []byte("{}"))
	for _, f := range c.Model() {
		b.expect(f)
	}
	return b.done()
}

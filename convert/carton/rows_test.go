package carton_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/carton"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/mediatype"
)

// TestFieldsAndKinds checks the field of the config for each field of carton.toml, and the kind of
// each path.
func TestFieldsAndKinds(t *testing.T) {
	const runner = "\n[runner]\nrunner_name = \"%\"\nrequired_framework_version = \"1\"\n"
	with := func(text, name string) converttest.Carton {
		return converttest.Carton{Files: []file{
			{Path: "carton.toml", Data: []byte("spec_version = 1\n" + text + strings.Replace(runner, "%", name, 1))},
			{Path: "model/weights.bin", Data: []byte("weights")},
		}}
	}
	for _, tt := range []struct{ name, text, runner, at, want string }{
		{"model_name is the name", `model_name = "m"`, "noop", "descriptor.name", `"m"`},
		{"short_description is the title", `short_description = "s"`, "noop", "descriptor.title", `"s"`},
		{"model_description is the description", `model_description = "d"`, "noop", "descriptor.description", `"d"`},
		{"license is a list of one", `license = "MIT"`, "noop", "descriptor.licenses", `["MIT"]`},
		{"homepage is the URL of the documents", `homepage = "https://h"`, "noop", "descriptor.docURL", `"https://h"`},
		{"runner_name is the format", "", "tensorflow", "config.format", `"tensorflow"`},
		{"torchscript is the format pt", "", "torchscript", "config.format", `"pt"`},
		{"an input of numbers is other", "[[input]]\nname='x'\ndtype='float32'\nshape=[]", "noop", "config.capabilities.inputTypes", `["other"]`},
		{"an input of strings is text", "[[input]]\nname='x'\ndtype='string'\nshape=[]", "noop", "config.capabilities.inputTypes", `["text"]`},
		{"an output of strings is text", "[[output]]\nname='x'\ndtype='string'\nshape=[]", "noop", "config.capabilities.outputTypes", `["text"]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := with(tt.text, tt.runner)
			m, err := open(t, at(c.Bytes()), carton.Options{}).Model(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if got := converttest.Member(t, m.Config, tt.at); got != tt.want {
				t.Errorf("%s: got %s, want %s, in %+v", tt.at, got, tt.want, m.Config)
			}
			if want := c.Hash().Encoded(); m.Config.Descriptor.Revision != want {
				t.Errorf("revision: got %s, want the digest of MANIFEST, %s", m.Config.Descriptor.Revision, want)
			}
		})
	}
	for path, want := range map[string]mediatype.Kind{
		"carton.toml": "weight.config", "model/a.bin": "weight", "model/a.json": "weight.config", "model/a.txt": "weight.config",
		"model/a.toml": "weight.config", "model/tokenizer.model": "weight.config", "model/a.py": "code", "misc/a.png": "doc", "misc/a.py": "doc",
	} {
		c := with("", "noop").With(file{Path: path, Data: []byte("spec_version = 1" + strings.Replace(runner, "%", "noop", 1))})
		m, err := open(t, at(c.Bytes()), carton.Options{}).Model(context.Background())
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, l := range m.Layers {
			if l.Path == path && (l.Kind != want || l.MediaType != "application/vnd.cncf.model."+string(want)+".v1.raw") {
				t.Errorf("%s: got %s, %s; want %s", path, l.Kind, l.MediaType, want)
			}
		}
	}
}

// TestSymlinksToSymlinks pulls a symbolic link that leads to another one.
func TestSymlinksToSymlinks(t *testing.T) {
	c := converttest.GoodCarton([]byte("weights")).With(
		file{Path: "model/deep/l", Data: []byte("weights"), Link: "../m"},
		file{Path: "model/m", Data: []byte("weights"), Link: "weights.bin"})
	compare(t, c, pull(t, at(c.Bytes()), carton.Options{}))
}

// TestHostilePathsAreRefused opens cartons with paths that lead out of the model, both in the archive
// and in MANIFEST.
func TestHostilePathsAreRefused(t *testing.T) {
	for name, path := range map[string]string{
		"parent": "../etc/passwd", "parents": "../../../etc/passwd", "parents from below": "model/../../../etc/passwd",
		"absolute": "/etc/passwd", "dot": ".", "dot dot": "..", "slash": "/", "NUL": "model/a\x00.bin", "invalid UTF-8": "model/\xff",
		"backslashes that leave": `..\..\x`, "backslashes in the middle": `model\..\..\x`, "65 directories": strings.Repeat("a/", 65) + "b",
		"a name of 256 bytes": "model/" + strings.Repeat("a", 256), "a directory of a file": "model/weights.bin/a",
	} {
		t.Run(name+" in MANIFEST and the archive", func(t *testing.T) {
			c := converttest.GoodCarton([]byte("weights")).With(file{Path: path, Data: []byte("x")})
			o, err := carton.Open(context.Background(), at(c.Bytes()), carton.Options{})
			if err == nil {
				_, err = o.Model(context.Background())
			}
			if err == nil {
				t.Errorf("%q is in the model", path)
			}
		})
	}
}

// TestDownloadURLHeaderIsIgnored reads from a server that sends the header x-carton-dl-url, which
// readers of the reference implementation follow.
func TestDownloadURLHeaderIsIgnored(t *testing.T) {
	c := converttest.GoodCarton([]byte("weights"))
	inside := serve(t, map[string]http.HandlerFunc{"/secret": content(c.Bytes())})
	s := serve(t, map[string]http.HandlerFunc{"/m.carton": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("x-carton-dl-url", inside.URL+"/secret")
		content(c.Bytes())(w, r)
	}})
	o := options(t)
	compare(t, c, pull(t, openURL(t, s.URL+"/m.carton", o), o))
	if n := len(inside.requests("/secret")); n != 0 {
		t.Errorf("%d requests to the URL in the header", n)
	}
}

// FuzzHostileCarton checks the error and the table of any archive. The seeds are the hostile cartons.
func FuzzHostileCarton(f *testing.F) {
	for _, cases := range []map[string]hostileCase{hostileManifests(), hostileInfos(), hostileLinks()} {
		for _, c := range cases {
			if p := c.carton.Bytes(); len(p) < 1<<13 {
				f.Add(p)
			}
		}
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		c, err := carton.Open(context.Background(), at(p), carton.Options{})
		if err != nil {
			if len(err.Error()) > 4000 {
				t.Fatalf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		defer c.Close()
		m, err := c.Model(context.Background())
		if err != nil {
			return
		}
		if _, err := m.Table.Encode(); err != nil {
			t.Fatalf("a model with a table that breaks a rule: %v", err)
		}
	})
}

package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// configDigest returns the digest of the config in a manifest.
func configDigest(t *testing.T, manifest []byte) digest.Digest {
	t.Helper()
	m, err := convert.ParseManifest(manifest)
	if err != nil {
		t.Fatal(err)
	}
	return m.Config.Digest
}

// TestInspectHeaders inspects models described mainly by the headers of their weights, before and
// after the download.
func TestInspectHeaders(t *testing.T) {
	s := newSite(t)
	weights := converttest.GGUF(converttest.SmallGGUF())
	s.Add("a/ollama", "v1", converttest.Ollama(converttest.Files(weights), converttest.OllamaConfigNew))
	s.Add("a/modelpack", "v1", converttest.ModelPackTarGzip(converttest.Files(weights)))
	s.Add("a/kitops", "v1", converttest.KitOps(converttest.Files(weights)))
	for name, want := range map[string]struct{ architecture, paramSize, quantization string }{
		"a/ollama":    {"llama", "1.2B", "Q4_K_M"}, // the last two are in its config
		"a/modelpack": {"transformer", "8b", "Q8_0"},
		"a/kitops":    {"llama", "8.3K", "Q8_0"},
	} {
		ref := s.Host() + "/" + name + ":v1"
		remote := parse[wire.Detail](t, s.ok(t, "inspect", "--remote", "-o", "json", ref))
		if d := remote.Description; d == nil || len(d.FromHeaders) != 0 || d.ContextLength != 0 {
			t.Errorf("%s: before the fetch: %+v", name, d)
		}
		s.ok(t, "prefetch", ref)
		d := parse[wire.Detail](t, s.ok(t, "inspect", "-o", "json", ref)).Description
		if d == nil {
			t.Fatalf("%s: no description", name)
		}
		got := struct{ architecture, paramSize, quantization string }{d.Config.Architecture, d.Config.ParamSize, d.Config.Quantization}
		if got != want || d.ContextLength != 2048 || d.Config.Format != "gguf" || d.Config.Capabilities == nil || len(d.Unreadable) != 0 {
			t.Errorf("%s: got %+v, want %+v", name, d, want)
		}
		for member, is := range map[string]bool{
			"architecture": want.architecture == "llama", "paramSize": want.paramSize == "8.3K", "quantization": want.quantization == "Q8_0",
			"contextLength": true, "capabilities": true, "format": false,
		} {
			if slices.Contains(d.FromHeaders, member) != is {
				t.Errorf("%s: %s from the header is %v, want %v", name, member, !is, is)
			}
		}
		out := s.ok(t, "inspect", ref)
		for _, line := range []string{"2048 tokens (from the header of the file)", "Mapping:", "version " + strconv.Itoa(convert.MappingVersion), "languages en de"} {
			if !strings.Contains(out, line) {
				t.Errorf("%s: no %q in\n%s", name, line, out)
			}
		}
	}
}

// TestInspectBadHeader inspects a model whose weights have an invalid header.
func TestInspectBadHeader(t *testing.T) {
	s := newSite(t)
	weights := converttest.GGUF(converttest.SmallGGUF())
	ref := s.Add("a/bad", "v1", converttest.ModelPackRaw(converttest.Files(weights[:100])))
	s.ok(t, "prefetch", ref)
	d := parse[wire.Detail](t, s.ok(t, "inspect", "-o", "json", ref))
	if d.State != wire.StateComplete || d.Description == nil || len(d.Description.Unreadable) != 1 || d.Description.Unreadable[0].Path != "model.gguf" {
		t.Errorf("got %+v", d.Description)
	}
	if out := s.ok(t, "inspect", ref); !strings.Contains(out, "not readable: model.gguf: ") {
		t.Errorf("inspect:\n%s", out)
	}
}

// TestInspectInvisible inspects a model with file names that look the same.
func TestInspectInvisible(t *testing.T) {
	s := newSite(t)
	ref := s.Add("a/odd", "v1", converttest.ModelPackRaw([]converttest.File{
		{Path: "model.gguf", Data: []byte("1"), Mode: 0o644}, {Path: "model\u200b.gguf", Data: []byte("2"), Mode: 0o644}, {Path: "model\U000e0041.gguf", Data: []byte("3"), Mode: 0o644},
	}))
	remote := s.ok(t, "inspect", "--remote", ref)
	s.ok(t, "prefetch", ref)
	for _, out := range []string{remote, s.ok(t, "inspect", ref)} {
		if strings.ContainsAny(out, "\u200b\U000e0041") || strings.Count(out, "model\ufffd.gguf") < 2 {
			t.Errorf("inspect:\n%q", out)
		}
	}
}

// TestInspectOrigin prints the documents of origins, and the facts that the image has no place for.
func TestInspectOrigin(t *testing.T) {
	s := newSite(t)
	files := converttest.Files([]byte("GGUF"))
	for _, b := range []*converttest.Built{
		converttest.Ollama(files, converttest.OllamaConfigNew), converttest.DockerAIGGUF(files), converttest.CNAI(files),
		converttest.CNAIEarly(files, converttest.EarlyConfigFull), converttest.CNAIEarly(files, converttest.EarlyConfigEmpty),
		converttest.ModelPackRaw(files), converttest.KitOpsGzip(files),
	} {
		ref := s.Add("a/"+b.Name, "v1", b)
		s.ok(t, "prefetch", ref)
		for _, args := range [][]string{{"inspect", ref}, {"inspect", "--remote", ref}} {
			if got := s.ok(t, append(args, "--origin")...); !bytes.Equal([]byte(got), b.Manifest) {
				t.Errorf("%s: manifest %q", b.Name, got)
			}
			got := s.ok(t, append(args, "--origin=config")...)
			if digest.FromString(got) != configDigest(t, b.Manifest) {
				t.Errorf("%s: config %q", b.Name, got)
			}
		}
		if code, _, stderr := s.ballast(t.Context(), "inspect", "--origin=child", ref); code != exitNotFound || !strings.Contains(stderr, "no child") {
			t.Errorf("%s: child of a list: code %d, %s", b.Name, code, stderr)
		}
		if code, _, _ := s.ballast(t.Context(), "inspect", "--origin=x", ref); code != exitUsage {
			t.Errorf("%s: --origin=x: code %d", b.Name, code)
		}
	}
	ref := s.Host() + "/a/docker-ai-gguf:v1"
	local := parse[wire.Detail](t, s.ok(t, "inspect", "-o", "json", ref))
	remote := parse[wire.Detail](t, s.ok(t, "inspect", "--remote", "-o", "json", ref))
	if diff := cmp.Diff(local.Losses, remote.Losses); diff != "" || len(local.Losses) == 0 || local.Documents != nil {
		t.Errorf("losses (-local +remote):\n%s", diff)
	}
	if !json.Valid(local.ConfigJSON) {
		t.Errorf("config: %s", local.ConfigJSON)
	}
	out := s.ok(t, "inspect", ref)
	for _, line := range []string{"manifest, config (--origin prints it)", "config config.size: kept in origin config"} {
		if !strings.Contains(out, line) {
			t.Errorf("no %q in\n%s", line, out)
		}
	}
}

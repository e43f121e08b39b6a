package ollama_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/ollama"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

const listType = "application/vnd.ollama.manifest.list.v2+json"

// list returns a manifest list with the given entries. TestList parses a list like any other
// format.
func TestList(t *testing.T) {
	t.Parallel()
	entry := converttest.ListEntry{Built: converttest.Ollama(converttest.Files([]byte("GGUF one")), converttest.OllamaConfigNew), Runner: "ggml"}
	inline := converttest.ListEntry{Built: converttest.Ollama(converttest.Files([]byte("GGUF two")), converttest.OllamaConfigOld), Inline: true}
	list := converttest.OllamaList(0, entry, inline)
	if _, err := ollama.Lists.Variants.Choose(list.Manifest, "mlx"); !errdefs.IsNotFound(err) {
		t.Errorf("a runner that is not there: %v", err)
	}
	// The size of the child is not known, which not every artifact supports.
	if _, err := formats.All().Parse(t.Context(), converttest.NewArtifact(list)); !errdefs.IsNotImplemented(err) {
		t.Errorf("a child without size: %v", err)
	}
	list = converttest.OllamaList(0, inline)
	model, err := formats.All().Parse(t.Context(), converttest.NewArtifact(list))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := model.Table.Origin.Digest, list.Digest(); got != want {
		t.Errorf("origin: got %s, want %s", got, want)
	}
}

func TestCutRunner(t *testing.T) {
	t.Parallel()
	for in, want := range map[string][2]string{
		"27b-mlx": {"27b", "mlx"}, "27b-llamacpp": {"27b", "llamacpp"}, "a-ggml-mlx": {"a-ggml", "mlx"},
		"27b": {"27b", ""}, "-mlx": {"-mlx", ""}, "mlx": {"mlx", ""}, "27b-cuda": {"27b-cuda", ""}, "": {"", ""},
	} {
		if rest, runner := formats.All().CutVariant(in); rest != want[0] || runner != want[1] {
			t.Errorf("%q: got %q and %q, want %q", in, rest, runner, want)
		}
	}
}

func list(entries ...string) string {
	return fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"manifests":[%s]}`, listType, strings.Join(entries, ","))
}

// child returns an entry of a list with the digest of text.
func child(text, rest string) string {
	return fmt.Sprintf(`{"mediaType":%q,"digest":%q%s}`, manifestType, digest.FromString(text), rest)
}

func TestParseListRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, list, text string
		want             error
	}{
		{"a nested list", list(child("a", `,"runner":"ggml"`), fmt.Sprintf(`{"mediaType":%q,"digest":%q}`, listType, digest.FromString("b"))), "entry 1", errdefs.ErrNotImplemented},
		{"a nested index", list(fmt.Sprintf(`{"mediaType":"application/vnd.oci.image.index.v1+json","digest":%q}`, digest.FromString("b"))), "entry 0", errdefs.ErrNotImplemented},
		{"a nested list, inline", list(list(child("a", ""))), "entry 0", errdefs.ErrNotImplemented},
		{"an entry without digest", list(`{"runner":"ggml"}`), "entry 0", errdefs.ErrInvalidArgument},
		{"an entry with an unknown runner", list(child("a", `,"runner":"ollama"`)), `"ollama"`, errdefs.ErrNotImplemented},
		{"ten thousand entries", list(strings.Repeat(child("a", "")+",", 9999) + child("a", "")), "10000 entries", errdefs.ErrInvalidArgument},
		{"65 entries", list(strings.Repeat(child("a", "")+",", 64) + child("a", "")), "65 entries", errdefs.ErrInvalidArgument},
		{"no entries", list(), "0 entries", errdefs.ErrInvalidArgument},
		{"entries that are no list", fmt.Sprintf(`{"mediaType":%q,"manifests":{}}`, listType), "0 entries", errdefs.ErrInvalidArgument},
		{"entries that are missing", fmt.Sprintf(`{"mediaType":%q}`, listType), "0 entries", errdefs.ErrInvalidArgument},
		{"an entry that is no object", list(`"x"`), "entry 0", errdefs.ErrInvalidArgument},
		{"an entry that is null", list("null"), "entry 0", errdefs.ErrInvalidArgument},
		{"a digest that is a path", list(`{"digest":"sha256:../../x","runner":"ggml"}`), "entry 0", errdefs.ErrInvalidArgument},
		{"a digest in upper case", list(fmt.Sprintf(`{"digest":%q}`, "sha256:"+strings.ToUpper(digest.FromString("a").Encoded()))), "entry 0", errdefs.ErrInvalidArgument},
		{"a digest of another algorithm", list(fmt.Sprintf(`{"digest":%q}`, "sha512:"+strings.Repeat("a", 128))), "entry 0", errdefs.ErrNotImplemented},
		{"a digest and a manifest", list(fmt.Sprintf(`{"digest":%q,"layers":[]}`, digest.FromString("a"))), "entry 0", errdefs.ErrInvalidArgument},
		{"a size that is negative", list(child("a", `,"size":-1`)), "entry 0", errdefs.ErrInvalidArgument},
		{"a size of 2^63-1", list(child("a", `,"size":9223372036854775807`)), "entry 0", errdefs.ErrInvalidArgument},
		{"a runner that is a number", list(child("a", `,"runner":1`)), "entry 0", errdefs.ErrInvalidArgument},
		{"a key twice", list(child("a", `,"runner":"ggml","runner":"mlx"`)), "twice", errdefs.ErrInvalidArgument},
		{"nested ten thousand deep", strings.Repeat("[", 10000), "JSON", errdefs.ErrInvalidArgument},
		{"data after it", list(child("a", "")) + "{}", "after", errdefs.ErrInvalidArgument},
		{"an OCI index", `{"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}`, "not a list", errdefs.ErrInvalidArgument},
		{"an HTML page", "<html>", "JSON", errdefs.ErrInvalidArgument},
		{"nine megabytes", strings.Repeat(" ", 9<<20), "bytes", errdefs.ErrInvalidArgument},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := ollama.ParseList([]byte(tt.list))
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %.300v, want %v with %q", err, tt.want, tt.text)
			}
		})
	}
}

func TestParseList(t *testing.T) {
	t.Parallel()
	inline := `{"schemaVersion":2,"mediaType":"` + manifestType + `","config":{"digest":""},"layers":[],"runner":"mlx","format":"safetensors"}`
	var spaced bytes.Buffer
	if err := json.Indent(&spaced, []byte(inline), "", "  "); err != nil {
		t.Fatal(err)
	}
	p := []byte(list(
		child("a", `,"runner":"GGML","format":"gguf","ggufFile":{"unknown":true}`),
		child("b", `,"format":"safetensors"`),
		child("c", `,"format":"gguf","size":12`),
		child("d", ""),
		spaced.String(),
	))
	got, err := ollama.ParseList(p)
	if err != nil {
		t.Fatal(err)
	}
	want := &ollama.List{Digest: digest.FromBytes(p), Bytes: p, Children: []ollama.Child{
		{Digest: digest.FromString("a"), Size: -1, Runner: "ggml", Format: "gguf"},
		{Digest: digest.FromString("b"), Size: -1, Runner: "mlx", Format: "safetensors"},
		{Digest: digest.FromString("c"), Size: 12, Runner: "ggml", Format: "gguf"},
		{Digest: digest.FromString("d"), Size: -1},
		{Digest: digest.FromString(inline), Size: int64(len(inline)), Manifest: []byte(inline), Runner: "mlx", Format: "safetensors"},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	m, err := convert.ParseManifest(p)
	if err != nil || !mediatype.IsVariants(m.MediaType) || m.Digest != got.Digest {
		t.Errorf("%v is no list, %v", m, err)
	}
	if m, err = convert.ParseManifest([]byte(inline)); err != nil || mediatype.IsVariants(m.MediaType) {
		t.Errorf("a manifest is a list: %v, %v", m, err)
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		runners, runner string // of entries, comma-separated; "" is an entry without a runner
		want            string // the runner, or a number
		err             error
	}{
		{"mlx,ggml,llamacpp", "", "2", nil},
		{"mlx,ggml", "", "1", nil},
		{"mlx", "", "0", nil},
		{"llamacpp,mlx", "MLX", "1", nil},
		{"llamacpp,mlx", "ggml", "", errdefs.ErrNotFound},
		{"llamacpp,mlx", "ollama", "", errdefs.ErrInvalidArgument},
		{"llamacpp,mlx", "../x", "", errdefs.ErrInvalidArgument},
		{"llamacpp,llamacpp", "", "", errdefs.ErrInvalidArgument},
		{"llamacpp,mlx,mlx", "", "0", nil},
		{"llamacpp,mlx,mlx", "mlx", "", errdefs.ErrInvalidArgument},
		{"?", "", "0", nil},
		{"?", "mlx", "", errdefs.ErrNotFound},
		{"?,?", "", "", errdefs.ErrNotFound},
		{"?,mlx", "", "1", nil},
	} {
		var entries []string
		for i, r := range strings.Split(tt.runners, ",") {
			rest := ""
			if r != "?" {
				rest = fmt.Sprintf(`,"runner":%q`, r)
			}
			entries = append(entries, child(fmt.Sprint(i), rest))
		}
		l, err := ollama.ParseList([]byte(list(entries...)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := ollama.Choose(l, tt.runner)
		if tt.err != nil {
			if !errors.Is(err, tt.err) {
				t.Errorf("%q, runner %q: got %v, want %v", tt.runners, tt.runner, err, tt.err)
			}
			continue
		}
		if err != nil || got.Digest != digest.FromString(tt.want) {
			t.Errorf("%q, runner %q: got %v, %v; want entry %s", tt.runners, tt.runner, got, err, tt.want)
		}
	}
}

func TestChooseMergesEqualDigests(t *testing.T) {
	t.Parallel()
	l, err := ollama.ParseList([]byte(list(child("a", `,"runner":"mlx"`), child("a", `,"runner":"mlx"`))))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ollama.Choose(l, ""); err != nil {
		t.Error(err)
	}
}

// TestParseChild parses each child of a list, by digest and inline.
func TestParseChild(t *testing.T) {
	t.Parallel()
	gguf := converttest.Ollama(converttest.Files([]byte("GGUF weights")), converttest.OllamaConfigNew)
	mlx := converttest.OllamaTensors(converttest.TensorNamed, converttest.Tensors(10, 64))
	origins := map[filetable.Origin]bool{}
	for _, inline := range []bool{false, true} {
		entries := []converttest.ListEntry{
			{Built: mlx.Built, Runner: "mlx", Format: "safetensors", Inline: inline},
			{Built: gguf, Runner: "ggml", Format: "gguf"},
		}
		for chosen, runner := range []string{"mlx", "ggml"} {
			b := converttest.OllamaList(chosen, entries...)
			l, err := ollama.ParseList(b.Manifest)
			if err != nil {
				t.Fatal(err)
			}
			c, err := ollama.Choose(l, runner)
			if inline && runner == "mlx" {
				c, err = l.Children[0], nil // its manifest does not have the runner
			}
			if err != nil {
				t.Fatal(err)
			}
			p := c.Manifest
			if p == nil {
				p = b.Blobs[c.Digest]
			}
			model, err := ollama.ParseChild(context.Background(), converttest.NewArtifact(b), l, c, p)
			if err != nil {
				t.Fatal(err)
			}
			if model.Table.Origin != ollama.Origin(l, c) || model.Table.Origin.Digest != l.Digest {
				t.Errorf("%s: origin %v", runner, model.Table.Origin)
			}
			if got := model.Config.Descriptor.Revision; got != c.Digest.String() {
				t.Errorf("%s: revision %q", runner, got)
			}
			origins[model.Table.Origin] = true
			checkFiles(t, b, model)
		}
	}
	if len(origins) != 4 {
		t.Errorf("got %d origins for four models", len(origins))
	}
}

// checkFiles checks that a model has the files of b.
func checkFiles(t *testing.T, b *converttest.Built, m *convert.Model) {
	t.Helper()
	files, err := converttest.Extract(m, b.Blobs)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range b.Files {
		if got, ok := files[path]; !ok || !bytes.Equal(got.Data, want.Data) {
			t.Errorf("%s: got %.100q, want %.100q", path, got.Data, want.Data)
		}
	}
}

func TestChildManifestIsVerified(t *testing.T) {
	t.Parallel()
	good := converttest.Ollama(converttest.Files([]byte("GGUF weights")), converttest.OllamaConfigNew)
	image := `{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"` + digest.FromString("x").String() + `","size":1},"layers":[]}`
	other := strings.Replace(string(good.Manifest), "{", `{"runner":"mlx",`, 1)
	for _, tt := range []struct {
		name, manifest, entry, text string
		want                        error
	}{
		{"other bytes", string(good.Manifest) + "\n", child(string(good.Manifest), `,"runner":"ggml"`), "digest", errdefs.ErrDataLoss},
		{"a list in a list", list(child("a", "")), child(list(child("a", "")), `,"runner":"ggml"`), "list in a list", errdefs.ErrNotImplemented},
		{"an image", image, child(image, `,"runner":"ggml"`), `not of format "ollama"`, errdefs.ErrInvalidArgument},
		{"another runner than the list says", other, child(other, `,"runner":"ggml"`), "runner", errdefs.ErrInvalidArgument},
		{"no manifest", "{}", child("{}", `,"runner":"ggml"`), "not a manifest", errdefs.ErrInvalidArgument},
	} {
		l, err := ollama.ParseList([]byte(list(tt.entry)))
		if err != nil {
			t.Fatal(err)
		}
		_, err = ollama.ParseChild(context.Background(), converttest.NewArtifact(good), l, l.Children[0], []byte(tt.manifest))
		if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: got %v, want %v with %q", tt.name, err, tt.want, tt.text)
		}
	}
}

func FuzzList(f *testing.F) {
	f.Add([]byte(list(child("a", `,"runner":"mlx"`), child("b", `,"format":"gguf"`))), "")
	f.Add([]byte(list(`{"layers":[],"runner":"LLAMACPP"}`, list(child("a", "")))), "mlx")
	for _, entry := range []string{
		`{"digest":"sha256:../../x"}`, `{"runner":"ggml"}`, "null", `"x"`, child("a", `,"runner":"ollama"`), child("a", `,"size":-1`), child("a", `,"size":9223372036854775807`),
		child("a", `,"runner":"ggml","runner":"mlx"`), child("a", `,"DIGEST":"x"`), child("a", ",") + `"x":`, fmt.Sprintf(`{"mediaType":%q,"digest":%q}`, listType, digest.FromString("b")),
	} {
		f.Add([]byte(list(entry)), "ggml")
	}
	f.Fuzz(func(t *testing.T, p []byte, runner string) {
		l, err := ollama.ParseList(p)
		if err != nil {
			if !errdefs.IsInvalidArgument(err) && !errdefs.IsNotImplemented(err) {
				t.Fatalf("error without a category: %v", err)
			}
			return
		}
		if len(l.Children) == 0 || len(l.Children) > 64 {
			t.Fatalf("%d children", len(l.Children))
		}
		for _, c := range l.Children {
			if _, err := verify.ParseDigest(c.Digest.String()); err != nil {
				t.Fatal(err)
			}
			if c.Manifest != nil {
				if err := verify.Bytes(c.Digest, c.Manifest); err != nil {
					t.Fatal(err)
				}
				if _, err := c.ParseManifest(c.Manifest); errdefs.IsDataLoss(err) {
					t.Fatal(err)
				}
			}
		}
		c, err := ollama.Choose(l, runner)
		if err == nil && runner != "" && !strings.EqualFold(c.Runner, runner) {
			t.Fatalf("got runner %q for %q", c.Runner, runner)
		}
	})
}

package huggingface_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/huggingface"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// repository returns a repository with files of all kinds, on more than one page.
func repository() map[string]converttest.HubFile {
	return map[string]converttest.HubFile{
		".gitattributes": {Data: []byte("*.safetensors filter=lfs")}, "README.md": {Data: []byte("read me")}, "empty": {},
		"config.json": {Data: []byte(`{"model_type":"llama"}`)}, "sub/a file.json": {Data: []byte("{}")},
		"model.safetensors": {Data: converttest.Safetensors(converttest.SmallSafetensors(), nil), LFS: true},
		"sub/copy.bin":      {Data: bytes.Repeat([]byte("0123456789"), 10_000), LFS: true},
	}
}

// TestChoice chooses files of a repository, and reads nothing of the others.
func TestChoice(t *testing.T) {
	t.Parallel()
	h := converttest.NewHub(t)
	files := repository()
	h.Push("org/model", "main", files)
	var origins []string
	for _, c := range []convert.Choice{{Include: []string{"*.safetensors", "config.json"}}, {Exclude: []string{"sub/", "README.md", "empty"}}, {Include: []string{"sub/"}}} {
		src, err := resolver(t, h, "").Open(t.Context(), "hf:org/model")
		if err != nil {
			t.Fatal(err)
		}
		if err := src.Choose(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		var paths []string
		for _, f := range src.Model.Table.Files {
			paths = append(paths, f.Path)
			body, _, err := src.Fetcher.Fetch(t.Context(), f.Source.Blob, f.Size, 0, f.Size)
			if err != nil {
				t.Fatal(err)
			}
			if p, err := io.ReadAll(body); err != nil || !bytes.Equal(p, files[f.Path].Data) {
				t.Errorf("%s: %d bytes, %v", f.Path, len(p), err)
			}
			body.Close()
		}
		origins = append(origins, src.Model.Table.Origin.Digest.String())
		want := []string{"config.json", "model.safetensors"}
		if len(origins) == 3 {
			want = []string{"sub/a file.json", "sub/copy.bin"}
		}
		if diff := cmp.Diff(want, paths); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", c, diff)
		}
		if _, err := src.Image(); err != nil || len(src.Model.Layers) != len(paths) {
			t.Errorf("%+v: %d layers, %v", c, len(src.Model.Layers), err)
		}
	}
	if origins[0] != origins[1] || origins[0] == origins[2] {
		t.Errorf("origins %q: the same files are the same model, others another", origins)
	}
	src, err := resolver(t, h, "").Open(t.Context(), "hf:org/model")
	if err != nil {
		t.Fatal(err)
	}
	if err := src.Choose(t.Context(), convert.Choice{Include: []string{"*.gguf"}}); !errdefs.IsNotFound(err) {
		t.Errorf("nothing: %v", err)
	}
}

// quantised returns a repository with several quantisations.
func quantised() map[string]converttest.HubFile {
	files := map[string]converttest.HubFile{"README.md": {Data: []byte("read me")}, "model.safetensors": {Data: []byte("tensors"), LFS: true}}
	for _, name := range []string{"m-Q8_0.gguf", "m-Q4_K_M-00001-of-00002.gguf", "m-Q4_K_M-00002-of-00002.gguf", "m-UD-Q4_K_M.gguf", "BF16/m-00001-of-00001.gguf", "mmproj-F16.gguf"} {
		files[name] = converttest.HubFile{Data: []byte("GGUF " + name), LFS: true}
	}
	return files
}

// resolver returns a resolver with the Hub h and a token of the node.
func resolver(t *testing.T, h *converttest.Hub, token string) *resolve.Resolver {
	t.Helper()
	hub, err := huggingface.New(h.URL)
	if err != nil {
		t.Fatal(err)
	}
	return resolverOf(t, h, hub, token)
}

// resolverOf is resolver with a client of the Hub that can have read something before.
func resolverOf(t *testing.T, h *converttest.Hub, hub *huggingface.Hub, token string) *resolve.Resolver {
	t.Helper()
	o := remote.Options{
		Dialects: map[string]remote.Dialect{"hf.co": hub}, AllowHosts: []string{strings.TrimPrefix(h.CDN.URL, "http://")}, Shared: remote.AnyHost,
		Credentials: func(string, string) (remote.Credentials, error) { return huggingface.Credentials(token), nil },
	}
	client, err := remote.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &resolve.Resolver{Upstream: client}
}

// open opens a name.
func open(t *testing.T, r *resolve.Resolver, name string) *resolve.Source {
	t.Helper()
	src, err := r.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { src.Close() })
	return src
}

// read reads the files of a model, in two ranges if they are large.
func read(t *testing.T, src *resolve.Source) map[string]string {
	t.Helper()
	got := map[string]string{}
	for _, f := range src.Model.Table.Files {
		var all bytes.Buffer
		for _, part := range [][2]int64{{0, f.Size / 2}, {f.Size / 2, f.Size - f.Size/2}} {
			body, start, err := src.Fetcher.Fetch(t.Context(), f.Digest, f.Size, part[0], part[1])
			if err != nil {
				t.Fatalf("%s: %v", f.Path, err)
			}
			if _, err := io.CopyN(io.Discard, body, part[0]-start); err != nil {
				t.Fatal(err)
			}
			if _, err := io.CopyN(&all, body, part[1]); err != nil {
				t.Fatalf("%s: %v", f.Path, err)
			}
			body.Close()
		}
		got[f.Path] = all.String()
	}
	return got
}

// text returns files as read does, except those in names.
func text(files map[string]converttest.HubFile, without ...string) map[string]string {
	all := map[string]string{}
	for name, f := range files {
		if !slices.Contains(without, name) {
			all[name] = string(f.Data)
		}
	}
	return all
}

// TestRepository reads a repository by a branch, by its commit and under another name: files in
// LFS, which are on another host, and small ones, for which only the Hub's object ID is known
// before.
func TestRepository(t *testing.T) {
	h := converttest.NewHub(t)
	commit := h.Push("Org/Model", "main", repository())
	h.Push("other/copy", "v1", repository())
	for _, token := range []string{"", "hf_secret"} {
		h.Protect("Org/Model", token)
		h.Protect("other/copy", token)
		r := resolver(t, h, token)
		src := open(t, r, "hf:Org/Model")
		if diff := cmp.Diff(text(repository(), ".gitattributes"), read(t, src)); diff != "" {
			t.Errorf("files (-want +got):\n%s", diff)
		}
		first, err := src.Image()
		if err != nil {
			t.Fatal(err)
		}
		if src.Model.Config.Descriptor.Revision != commit {
			t.Errorf("revision %q, want %s", src.Model.Config.Descriptor.Revision, commit)
		}
		for _, name := range []string{"hf:Org/Model@main", "hf:Org/Model@" + commit, "hf.co/Org/Model", "hf.co/Org/Model:main", "hf:other/copy@v1",
			"hf:Org/Model@" + src.Origin.Served.Digest.String()} {
			if im, err := open(t, r, name).Image(); err != nil || im.Digest != first.Digest {
				t.Errorf("%s: %v, %v; want %s", name, im, err, first.Digest)
			}
		}
	}
	if l := h.Leaked(); len(l) != 0 {
		t.Errorf("the other host got the token: %q", l)
	}
}

// TestKnown requests a known manifest again: one request checks whether it is current, and one whether
// the client may read its files.
func TestKnown(t *testing.T) {
	h := converttest.NewHub(t)
	h.Push("Org/Model", "main", repository())
	r := resolver(t, h, "")
	open(t, r, "hf:Org/Model")
	h.Count("")
	open(t, r, "hf:Org/Model")
	if n := h.Count(""); n != 2 {
		t.Errorf("%d requests", n)
	}
	h.Protect("Org/Model", "hf_secret")
	if _, err := r.Open(t.Context(), "hf:Org/Model"); !errdefs.IsUnauthorized(err) {
		t.Errorf("a model that became private: %v", err)
	}
}

// TestRequests opens a repository of 200 files: two requests for the commit and the tree, one for each file whose
// SHA-256 the Hub does not know, and one to see whether the weights may be read.
func TestRequests(t *testing.T) {
	h := converttest.NewHub(t)
	h.Page = 1000
	files := map[string]converttest.HubFile{"config.json": {Data: []byte("{}")}, "tokenizer.json": {Data: []byte("[]")}}
	for i := range 198 {
		files[fmt.Sprintf("model-%05d-of-00198.safetensors", i+1)] = converttest.HubFile{Data: fmt.Appendf(nil, "weights %d", i), LFS: true}
	}
	h.Push("Org/Model", "main", files)
	h.Count("")
	src := open(t, resolver(t, h, ""), "hf:Org/Model")
	if n := len(src.Model.Table.Files); n != len(files) {
		t.Errorf("%d files", n)
	}
	if n := h.Count(""); n != 2+2+1 {
		t.Errorf("%d requests", n)
	}
}

// TestGated reads a repository whose files are listed to everybody: only a token of an account that accepted the
// conditions gives its manifest, whoever has read it before.
func TestGated(t *testing.T) {
	h := converttest.NewHub(t)
	commit := h.Push("Org/Gated", "main", repository())
	h.Gate("Org/Gated", "hf_granted")
	hub, err := huggingface.New(h.URL)
	if err != nil {
		t.Fatal(err)
	}
	as := func(token string) *resolve.Resolver { return resolverOf(t, h, hub, token) }
	d := open(t, as("hf_granted"), "hf:Org/Gated").Origin.Served.Digest
	for _, name := range []string{"hf:Org/Gated", "hf:Org/Gated@" + commit, "hf:Org/Gated@" + d.String()} {
		if _, err := as("").Open(t.Context(), name); !errdefs.IsUnauthorized(err) {
			t.Errorf("%s without a token: %v", name, err)
		}
		if _, err := as("hf_another").Open(t.Context(), name); !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s with a token of another account: %v", name, err)
		}
		if diff := cmp.Diff(text(repository(), ".gitattributes"), read(t, open(t, as("hf_granted"), name))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestRemind reads, after a restart, a commit that is no longer on its branch.
func TestRemind(t *testing.T) {
	h := converttest.NewHub(t)
	h.Push("Org/Model", "main", repository())
	before := open(t, resolver(t, h, ""), "hf:Org/Model")
	h.Push("Org/Model", "main", map[string]converttest.HubFile{"w.gguf": {Data: []byte("another"), LFS: true}})
	r := resolver(t, h, "")
	src := *before
	repo, err := r.Upstream.Repository(before.Origin.Ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	src.Fetcher = repo
	if _, _, err := repo.Fetch(t.Context(), src.Model.Table.Files[0].Digest, 1, 0, 1); !errdefs.IsNotFound(err) {
		t.Errorf("a file of a manifest that nobody has told of: %v", err)
	}
	known, err := r.Upstream.Remind(before.Origin.Ref, func() ([]byte, error) { return before.Origin.Served.Bytes, nil })
	if err != nil || !known {
		t.Fatal(known, err)
	}
	if diff := cmp.Diff(text(repository(), ".gitattributes"), read(t, &src)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if other, err := r.Upstream.Remind(remote.Ref{Host: "ghcr.io"}, nil); err != nil || other {
		t.Error(other, err)
	}
}

// TestQuantisations chooses quantisations by tag.
func TestQuantisations(t *testing.T) {
	h := converttest.NewHub(t)
	h.Push("Org/M-GGUF", "main", quantised())
	h.Push("Org/One-GGUF", "main", map[string]converttest.HubFile{"m.Q5_0.gguf": {Data: []byte("GGUF"), LFS: true}, "x.bin": {Data: []byte("x"), LFS: true}})
	r := resolver(t, h, "")
	four := []string{"README.md", "m-Q4_K_M-00001-of-00002.gguf", "m-Q4_K_M-00002-of-00002.gguf", "mmproj-F16.gguf"}
	for name, want := range map[string][]string{
		"hf.co/Org/M-GGUF:Q4_K_M":    four,
		"hf.co/Org/M-GGUF:q4_k_m":    four,
		"hf.co/Org/M-GGUF":           four,
		"hf.co/Org/M-GGUF:UD-Q4_K_M": {"README.md", "m-UD-Q4_K_M.gguf", "mmproj-F16.gguf"},
		"hf.co/Org/M-GGUF:BF16":      {"BF16/m-00001-of-00001.gguf", "README.md", "mmproj-F16.gguf"},
		"hf.co/Org/M-GGUF:main":      slices.Sorted(maps.Keys(quantised())),
		"hf.co/Org/One-GGUF":         {"m.Q5_0.gguf", "x.bin"},
	} {
		var got []string
		for _, f := range open(t, r, name).Model.Table.Files {
			got = append(got, f.Path)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if _, err := r.Open(t.Context(), "hf.co/Org/M-GGUF:Q2_K"); !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "Q8_0") {
		t.Errorf("a quantisation that is not there: %v", err)
	}
}

// TestRefused checks the errors and their advice.
func TestRefused(t *testing.T) {
	h := converttest.NewHub(t)
	h.Push("Org/Gated", "main", repository())
	h.Gate("Org/Gated", "hf_granted")
	h.Push("Org/Private", "main", repository())
	h.Protect("Org/Private", "hf_other")
	h.Push("Org/Public", "main", repository())
	for _, tt := range []struct {
		name, token string
		is          func(error) bool
		words       string
	}{
		{"hf:Org/Gated", "", errdefs.IsUnauthorized, "accept its conditions at " + h.URL + "/Org/Gated"},
		{"hf:Org/Gated", "hf_secret", errdefs.IsPermissionDenied, "accept its conditions at " + h.URL + "/Org/Gated"},
		{"hf:Org/Private", "", errdefs.IsUnauthorized, "a token is needed"},
		{"hf:Org/Private", "hf_secret", errdefs.IsNotFound, "the token may not read it"},
		{"hf:Org/Public@none", "", errdefs.IsNotFound, "no such branch"},
		{"hf:gpt2", "", errdefs.IsNotFound, "ORG/REPO"},
		{"hf:Org/Public@a/b", "", errdefs.IsInvalidArgument, "tag"},
	} {
		_, err := resolver(t, h, tt.token).Open(t.Context(), tt.name)
		if !tt.is(err) || !strings.Contains(fmt.Sprint(err), tt.words) || strings.Contains(fmt.Sprint(err), "hf_secret") {
			t.Errorf("%s with %q: %v", tt.name, tt.token, err)
		}
	}
}

// TestFalseResponses has a Hub whose small files are not those of the commit, and paths that lead out of a
// model.
func TestFalseResponses(t *testing.T) {
	for name, tt := range map[string]struct {
		tree string
		is   func(error) bool
	}{
		"content":     {`[{"type":"file","path":"a","size":4,"oid":"0123456789012345678901234567890123456789"}]`, func(err error) bool { return err != nil && !errors.Is(err, convert.ErrNotModel) }},
		"path":        {`[{"type":"file","path":"../a","size":4,"oid":"x"}]`, errdefs.IsFailedPrecondition},
		"digest":      {`[{"type":"file","path":"a","size":4,"oid":"x","lfs":{"oid":"x","size":4}}]`, errdefs.IsFailedPrecondition},
		"large small": {`[{"type":"file","path":"a","size":99999999,"oid":"x"}]`, errdefs.IsFailedPrecondition},
		"negative":    {`[{"type":"file","path":"a","size":-1,"oid":"x"}]`, errdefs.IsFailedPrecondition},
		"no files":    {`[]`, errdefs.IsFailedPrecondition},
		"a submodule": {`[{"type":"commit","path":"a"}]`, errdefs.IsFailedPrecondition},
	} {
		h := converttest.NewHub(t)
		h.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case strings.Contains(r.URL.Path, "/revision/"):
				io.WriteString(w, `{"sha":"`+strings.Repeat("a", 40)+`"}`)
			case strings.Contains(r.URL.Path, "/tree/"):
				io.WriteString(w, tt.tree)
			default:
				io.WriteString(w, "data")
			}
		})
		if _, err := resolver(t, h, "").Open(t.Context(), "hf:Org/Model"); !tt.is(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

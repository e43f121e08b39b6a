package registry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestConvert pulls every format as containerd does, from two facades with fresh stores.
func TestConvert(t *testing.T) {
	t.Parallel()
	for _, b := range converttest.All(converttest.Files(weights(100_000))) {
		t.Run(b.Name, func(t *testing.T) {
			t.Parallel()
			u, other := newUpstream(t), newUpstream(t)
			if b.Format == mediatype.FormatOllama {
				u.Before(asOllama)
			}
			u.Add("org/"+b.Name, "v1", b)
			other.Add("another/place", "v2", b)
			f := newFacade(t, ollamaAt(u))

			head := f.ask(t, http.MethodHead, "/v2/org/"+b.Name+"/manifests/v1", u.Host())
			got := f.get(t, u, "org/"+b.Name, "v1")
			d := digest.FromBytes(got.body)
			for _, k := range []string{"Docker-Content-Digest", "Content-Type", "Content-Length", "Etag"} {
				if diff := cmp.Diff(head.header.Get(k), got.header.Get(k)); diff != "" || got.header.Get(k) == "" {
					t.Errorf("%s of HEAD and GET (-HEAD +GET):\n%s", k, diff)
				}
			}
			if got, want := got.header.Get("Docker-Content-Digest"), d.String(); got != want {
				t.Errorf("Docker-Content-Digest is %s, want %s", got, want)
			}
			if got, want := got.header.Get("Content-Type"), mediatype.OCIManifest; got != want {
				t.Errorf("Content-Type is %s, want %s", got, want)
			}
			if n := u.Count("GET /v2/org/" + b.Name + "/manifests/"); n < 1 || n > 2 {
				t.Errorf("%d GETs of the manifest upstream, want one, or two without HEAD", n)
			}

			// As containerd goes on: the manifest by digest, the config, the table.
			again := f.get(t, u, "org/"+b.Name, d.String())
			if !bytes.Equal(again.body, got.body) {
				t.Error("the manifest by digest differs")
			}
			m := decode[ocispec.Manifest](t, got)
			table := m.Layers[len(m.Layers)-1]
			for _, desc := range []ocispec.Descriptor{m.Config, table} {
				blob := f.ask(t, http.MethodGet, "/v2/org/"+b.Name+"/blobs/"+desc.Digest.String(), u.Host())
				if blob.status != 200 || digest.FromBytes(blob.body) != desc.Digest || int64(len(blob.body)) != desc.Size {
					t.Errorf("blob %s: status %d, %d bytes", desc.MediaType, blob.status, len(blob.body))
				}
			}
			if n := u.Count(""); n != 0 {
				t.Errorf("%d requests upstream for what is ours", n)
			}

			// Another node, another registry, another name.
			g := newFacade(t, remote.Options{})
			if second := g.get(t, other, "another/place", "v2"); !bytes.Equal(second.body, got.body) {
				t.Error("another node converts to other bytes")
			}
			hydrate(t, f, u, "org/"+b.Name, table.Digest, b)
		})
	}
}

// hydrate fetches the model through the fetchers of the facade and compares its files.
func hydrate(t *testing.T, f *facade, u *upstream, repository string, table digest.Digest, b *converttest.Built) {
	t.Helper()
	ref, err := remote.NewRef(u.Host(), repository, "v1")
	if err != nil {
		t.Fatal(err)
	}
	im, err := f.h.Convert(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	if im.Table != table || im.Origin.Digest != b.Digest() || im.Origin.Format != string(b.Format) || len(im.PrivateNames) > 0 {
		t.Errorf("image is %+v", im)
	}
	if diff := cmp.Diff(im.Refs, []string{ref.String()}); diff != "" {
		t.Errorf("refs (-got +want):\n%s", diff)
	}
	if err := f.h.Store.Hydrate(t.Context(), table, store.HydrateOptions{Sources: f.h.Sources(im, registry.Names(im)...)}); err != nil {
		t.Fatal(err)
	}
	files, err := f.h.Store.Views.Files(table)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]digest.Digest{}
	for _, file := range files {
		if file.Type == filetable.TypeReg {
			got[file.Path] = file.Digest
		}
	}
	want := map[string]digest.Digest{}
	for p, file := range b.Files {
		want[p] = digest.FromBytes(file.Data)
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("files (-got +want):\n%s", diff)
	}
}

// TestConvertOnce checks that concurrent requests share a conversion, and that later ones use its result.
func TestConvertOnce(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	b := converttest.ModelPackTar(converttest.Files(weights(1000)))
	u.Add("org/model", "v1", b)
	f := newFacade(t, remote.Options{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { f.get(t, u, "org/model", "v1") })
	}
	wg.Wait()
	cfg := decode[ocispec.Manifest](t, reply{body: b.Manifest}).Config.Digest
	if n := u.Count(cfg.String()); n != 1 {
		t.Errorf("the config was read %d times, want once", n)
	}
	u.Add("org/model", "v2", b)
	f.get(t, u, "org/model", "v2")
	if n := u.Count("/blobs/"); n != 0 {
		t.Errorf("%d blobs read for an origin that is known", n)
	}
	ims := f.h.Store.Catalog.Images()
	if len(ims) != 1 || len(ims[0].Refs) != 2 {
		t.Errorf("images are %+v, want one with two references", ims)
	}
}

// TestConvertCancel has a caller that gives up: the conversion goes on.
func TestConvertCancel(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.Add("org/model", "v1", converttest.ModelPackTar(converttest.Files(weights(1000))))
	f := newFacade(t, remote.Options{})
	ref, err := remote.NewRef(u.Host(), "org/model", "v1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.h.Convert(ctx, ref); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that is done: %v", err)
	}
	if _, err := f.h.Convert(t.Context(), ref); err != nil {
		t.Error(err)
	}
}

func TestPassThrough(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	f := newFacade(t, remote.Options{})
	index := func(entries ...ocispec.Descriptor) []byte { return indexOf(entries...) }
	for name, tt := range map[string]struct {
		bytes     []byte
		mediaType string
	}{
		"image":             {ordinary(3), mediatype.OCIManifest},
		"docker":            {bytes.ReplaceAll(ordinary(2), []byte(mediatype.OCIManifest), []byte(mediatype.DockerManifest)), mediatype.DockerManifest},
		"without-mediatype": {bytes.Replace(ordinary(1), []byte(`"mediaType": "`+mediatype.OCIManifest+`",`), nil, 1), mediatype.OCIManifest},
		"index": {index(
			ocispec.Descriptor{MediaType: mediatype.OCIManifest, Digest: digest.FromString("a"), Size: 5, Platform: &ocispec.Platform{OS: "linux", Architecture: "amd64"}},
			ocispec.Descriptor{MediaType: mediatype.OCIManifest, Digest: digest.FromString("b"), Size: 5, Platform: &ocispec.Platform{OS: "unknown", Architecture: "unknown"}},
		), mediatype.OCIIndex},
	} {
		t.Run(name, func(t *testing.T) {
			d := u.Put("org/"+name, "v1", tt.bytes, tt.mediaType)
			u.Count("")
			for _, object := range []string{"v1", d.String()} {
				got := f.get(t, u, "org/"+name, object)
				if !bytes.Equal(got.body, tt.bytes) {
					t.Errorf("%s: bytes differ", object)
				}
				if got.header.Get("Content-Type") != tt.mediaType || got.header.Get("Docker-Content-Digest") != d.String() {
					t.Errorf("%s: headers %v", object, got.header)
				}
			}
			if n := u.Count(""); n != 1 {
				t.Errorf("%d requests upstream for a pull, want 1", n)
			}
			ref, err := remote.NewRef(u.Host(), "org/"+name, "v1")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.h.Convert(t.Context(), ref); !errors.Is(err, convert.ErrNotModel) {
				t.Errorf("Convert: %v, want ErrNotModel", err)
			}
		})
	}
	if ims := f.h.Store.Catalog.Images(); len(ims) != 0 {
		t.Errorf("images in the store: %v", ims)
	}
}

// TestJoinedPasses has many ask at the same time for what turns out to be no model when it is parsed: all get it
// as it is.
func TestJoinedPasses(t *testing.T) {
	t.Parallel()
	u, f := newUpstream(t), newFacade(t, remote.Options{})
	config := []byte(`{"architecture":"amd64","os":"linux"}`)
	u.PutBlob("org/empty", config)
	m := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":%q,"digest":%q,"size":%d},"layers":[]}`,
		mediatype.DockerManifest, mediatype.DockerConfig, digest.FromBytes(config), len(config))
	u.Put("org/empty", "v1", m, mediatype.DockerManifest)
	const pulls = 8
	var asked atomic.Int32
	all := make(chan struct{})
	registry := u.Config.Handler
	u.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/blobs/") {
			<-all
		}
		registry.ServeHTTP(w, r)
		if strings.Contains(r.URL.Path, "/manifests/") && asked.Add(1) == pulls {
			close(all)
		}
	})
	var wg sync.WaitGroup
	for range pulls {
		wg.Go(func() {
			if got := f.get(t, u, "org/empty", "v1"); !bytes.Equal(got.body, m) || got.header.Get("Content-Type") != mediatype.DockerManifest {
				t.Errorf("answer %q, headers %v", got.body, got.header)
			}
		})
	}
	wg.Wait()
}

func TestBlobs(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	b := converttest.ModelPackRaw(converttest.Files(weights(10_000)))
	u.Add("org/model", "v1", b)
	f := newFacade(t, remote.Options{})
	m := decode[ocispec.Manifest](t, f.get(t, u, "org/model", "v1"))
	var weight ocispec.Descriptor
	for _, l := range m.Layers {
		if l.Size == 10_000 {
			weight = l
		}
	}
	table := m.Layers[len(m.Layers)-1]
	whole := f.ask(t, http.MethodGet, "/v2/org/model/blobs/"+table.Digest.String(), u.Host()).body
	for name, tt := range map[string]struct {
		desc    ocispec.Descriptor
		content []byte
	}{
		"ours":       {table, whole},
		"upstream's": {weight, b.Blobs[weight.Digest]},
	} {
		path := "/v2/org/model/blobs/" + tt.desc.Digest.String()
		size := len(tt.content)
		for _, r := range []struct {
			ranges string
			status int
			want   []byte
		}{
			{"", 200, tt.content},
			{"bytes=0-", 206, tt.content},
			{"bytes=5-14", 206, tt.content[5:15]},
			{"bytes=-3", 206, tt.content[size-3:]},
		} {
			var header []string
			if r.ranges != "" {
				header = []string{"Range", r.ranges}
			}
			got := f.ask(t, http.MethodGet, path, u.Host(), header...)
			if got.status != r.status || !bytes.Equal(got.body, r.want) || got.header.Get("Docker-Content-Digest") != tt.desc.Digest.String() {
				t.Errorf("%s, range %q: status %d, %d bytes", name, r.ranges, got.status, len(got.body))
			}
			head := f.ask(t, http.MethodHead, path, u.Host(), header...)
			for _, k := range []string{"Content-Length", "Content-Range", "Content-Type"} {
				if head.header.Get(k) != got.header.Get(k) {
					t.Errorf("%s, range %q: %s is %q for HEAD, %q for GET", name, r.ranges, k, head.header.Get(k), got.header.Get(k))
				}
			}
		}
		if got := f.ask(t, http.MethodGet, path, u.Host(), "Range", fmt.Sprintf("bytes=%d-", size+5)); got.status != 416 {
			t.Errorf("%s: range behind the end: status %d, want 416", name, got.status)
		}
	}
	next := []string{registry.HeaderNext, "registry"}
	for path, want := range map[string]int{table.Digest.String(): 200, weight.Digest.String(): 404} {
		if got := f.ask(t, http.MethodGet, "/v2/org/model/blobs/"+path, u.Host(), next...); got.status != want {
			t.Errorf("who can ask the registry gets status %d for %s, want %d", got.status, path, want)
		}
	}
	shared := newFacade(t, remote.Options{Shared: func(string) bool { return true }})
	if got := shared.ask(t, http.MethodGet, "/v2/org/model/blobs/"+weight.Digest.String(), u.Host(), next...); got.status != 200 {
		t.Errorf("who has no credentials of his own gets status %d", got.status)
	}
	got := f.ask(t, http.MethodGet, "/v2/org/model/blobs/"+digest.FromString("none").String(), u.Host())
	if got.status != 404 || !strings.HasPrefix(got.errorText(t), "BLOB_UNKNOWN") {
		t.Errorf("a blob that is not there: status %d, %s", got.status, got.body)
	}
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	b := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	u.Add("org/model", "v1", b)
	u.Add("a/manifests/blobs/b", "v1", b)
	f := newFacade(t, remote.Options{})
	host := u.Host()
	d := digest.FromString("x").String()
	for _, tt := range []struct {
		method, path, ns string
		status           int
	}{
		{"GET", "/v2/", "", 200},
		{"HEAD", "/v2/", "", 200},
		{"GET", "/v2", "", 200},
		{"GET", "/v2/" + host + "/org/model/manifests/v1", "", 200},
		{"GET", "/v2/a/manifests/blobs/b/manifests/v1", host, 200},
		{"GET", "/v2/org/model/manifests/v1", "", 400},
		{"GET", "/v2/org/model/manifests/none", host, 404},
		{"GET", "/v2/org/model/manifests/" + d, host, 404},
		{"POST", "/v2/org/model/blobs/uploads/", host, 405},
		{"DELETE", "/v2/org/model/manifests/v1", host, 405},
		{"GET", "/v2/org/model/tags/list", host, 404},
		{"GET", "/v2/org/model/referrers/" + d, host, 404},
		{"GET", "/v2/_catalog", host, 404},
		{"GET", "/", "", 404},
		{"GET", "/v1/x", "", 404},
		{"GET", "/v2/../../etc/passwd/manifests/v1", host, 403},
		{"GET", "/v2/org/%2e%2e/manifests/v1", host, 403},
		{"GET", "/v2/org/model%00/manifests/v1", host, 403},
		{"GET", "/v2/org/model%3Fx/manifests/v1", host, 403},
		{"GET", "/v2/org//model/manifests/v1", host, 403},
		{"GET", "/v2/org/model/manifests/..", host, 403},
		{"GET", "/v2/org/model/manifests/sha256:xyz", host, 403},
		{"GET", "/v2/org/model/manifests/sha512:" + strings.Repeat("a", 128), host, 403},
		{"GET", "/v2/org/model/blobs/v1", host, 400},
		{"GET", "/v2/org/model/blobs/sha256:..%2fx", host, 403},
		{"GET", "/v2//manifests/v1", host, 403},
		{"GET", "/v2/org/model/manifests/v1", "..", 403},
		{"GET", "/v2/org/model/manifests/v1", "evil.example%2Fx", 403},
		{"GET", "/v2/org/model/manifests/v1", "u:p@" + host, 403},
		{"GET", "/v2/org/model/manifests/v1", host + "&ns=" + host, 400},
		{"GET", "/v2/" + strings.Repeat("a/", 300) + "b/manifests/v1", host, 403},
	} {
		got := f.ask(t, tt.method, tt.path, tt.ns)
		if got.status != tt.status {
			t.Errorf("%s %.80s ns=%s: status %d, want %d: %s", tt.method, tt.path, tt.ns, got.status, tt.status, got.body)
		}
		if got.status >= 400 {
			got.errorText(t)
		}
	}
}

func TestLoop(t *testing.T) {
	t.Parallel()
	f := newFacade(t, remote.Options{})
	host := strings.TrimPrefix(f.URL, "http://")
	// The client does not know that this address is the facade.
	got := f.ask(t, http.MethodGet, "/v2/org/model/manifests/v1", host)
	if got.status != http.StatusForbidden {
		t.Errorf("status %d, want 403", got.status)
	}
	if text := got.errorText(t); !strings.Contains(text, "508") {
		t.Errorf("error %q does not speak of the loop", text)
	}
	if n := f.ask(t, http.MethodGet, "/v2/org/model/manifests/v1", "x.example", "Via", remote.Via).status; n != http.StatusLoopDetected {
		t.Errorf("status %d, want 508", n)
	}
}

func TestUpstreamErrors(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]int{401: 401, 403: 403, 404: 404, 429: 429, 500: 502, 503: 429, 502: 502} {
		shown := want
		if want != 401 && want != 404 {
			shown = 403 // the only one whose text containerd shows
		}
		u := newUpstream(t)
		u.Before(failing(status))
		f := newFacade(t, remote.Options{})
		got := f.ask(t, http.MethodGet, "/v2/org/model/manifests/v1", u.Host())
		if got.status != shown {
			t.Errorf("upstream %d: status %d, want %d", status, got.status, shown)
		}
		if text := got.errorText(t); !strings.Contains(text, u.Host()+"/org/model:v1") ||
			status == 404 && !strings.Contains(text, "has no such repository or tag") ||
			status != 401 && status != 404 && !strings.Contains(text, fmt.Sprint("answered ", status)) {
			t.Errorf("upstream %d: the text %q does not say so", status, text)
		}
		if n := f.ask(t, http.MethodGet, "/v2/"+u.Host()+"/org/model/manifests/v1", "").status; n != want {
			t.Errorf("upstream %d, asked without hosts.toml: status %d, want %d", status, n, want)
		}
		if challenge := got.header.Get("WWW-Authenticate"); (challenge != "") != (want == 401) {
			t.Errorf("upstream %d: challenge %q", status, challenge)
		}
		if after := got.header.Get("Retry-After"); (after == "17") != (want == 429) {
			t.Errorf("upstream %d: Retry-After %q", status, after)
		}
	}
	u := newUpstream(t)
	u.Close()
	f := newFacade(t, remote.Options{})
	got := f.ask(t, http.MethodGet, "/v2/org/model/manifests/v1", u.Host())
	if got.status != 403 || !strings.HasPrefix(got.errorText(t), "UNAVAILABLE ") || !strings.Contains(got.errorText(t), "connection refused") {
		t.Errorf("upstream down: status %d, %s", got.status, got.body)
	}
}

// TestRefusedModels has models that can not be converted: never passed on, never cached.
func TestRefusedModels(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	f := newFacade(t, remote.Options{})
	b := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	for name, p := range map[string]string{
		"unknown version": strings.ReplaceAll(string(b.Manifest), ".weight.v1.", ".weight.v2."),
		"list in a list":  `{"schemaVersion":2,"mediaType":"` + mediatype.OllamaManifestList + `","manifests":[{"mediaType":"` + mediatype.OllamaManifestList + `","digest":"` + b.Digest().String() + `"}]}`,
		"unknown runner":  `{"schemaVersion":2,"mediaType":"` + mediatype.OllamaManifestList + `","manifests":[{"digest":"` + b.Digest().String() + `","runner":"x"}]}`,
		"unsafe path":     strings.ReplaceAll(string(b.Manifest), `"model.gguf"`, `"../../model.gguf"`),
		"sha512":          strings.Replace(string(b.Manifest), "sha256:", "sha512:"+strings.Repeat("a", 64), 1),
		"both":            strings.Replace(string(b.Manifest), "{", `{"manifests":[],`, 1),
	} {
		u.Add("org/model", "v1", b)
		u.Put("org/model", "bad", []byte(p), mediatype.OCIManifest)
		got := f.ask(t, http.MethodGet, "/v2/org/model/manifests/bad", u.Host())
		if got.status != http.StatusForbidden {
			t.Errorf("%s: status %d, want 403: %s", name, got.status, got.body)
			continue
		}
		got.errorText(t)
	}
	if ims := f.h.Store.Catalog.Images(); len(ims) != 0 {
		t.Errorf("images in the store: %v", ims)
	}
}

// TestWrongBlob has a registry whose config blob has wrong bytes.
func TestWrongBlob(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	b := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	u.Add("org/model", "v1", b)
	cfg := decode[ocispec.Manifest](t, reply{body: b.Manifest}).Config
	good, path := b.Blobs[cfg.Digest], "/v2/org/model/blobs/"+cfg.Digest.String()
	u.Serve(path, bytes.Replace(good, []byte("a"), []byte("b"), 1))
	f := newFacade(t, remote.Options{})
	got := f.ask(t, http.MethodGet, "/v2/org/model/manifests/v1", u.Host())
	if got.status != http.StatusForbidden || !strings.Contains(got.errorText(t), "digest") {
		t.Errorf("status %d: %s", got.status, got.body)
	}
	u.Serve(path, good)
	f.get(t, u, "org/model", "v1") // and all is well
}

// TestLyingHeaders has a registry that gives other headers of a tar than its digest covers: that is nothing for those
// who pull the same model from another one.
func TestLyingHeaders(t *testing.T) {
	t.Parallel()
	good, evil := newUpstream(t), newUpstream(t)
	files := []converttest.File{{Path: "model.gguf", Data: weights(3000)}}
	b := converttest.ModelPackTar(files)
	for _, u := range []*upstream{good, evil} {
		u.Add("org/model", "v1", b)
	}
	honest := converttest.Tar(files...)
	evil.Serve("/v2/org/model/blobs/"+digest.FromBytes(honest).String(), converttest.Tar(converttest.File{Path: "evil.gguf", Data: weights(3000)}))
	f := newFacade(t, remote.Options{})
	lie := f.get(t, evil, "org/model", "v1")
	first := f.get(t, good, "org/model", "v1")
	if bytes.Equal(first.body, lie.body) {
		t.Fatal("the names that another registry gave are used")
	}
	im, err := f.h.Store.Catalog.Image(digest.FromBytes(first.body))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.h.Store.Hydrate(t.Context(), im.Table, store.HydrateOptions{Sources: f.h.Sources(im, good.Host()+"/org/model")}); err != nil {
		t.Fatal(err)
	}
	list, err := f.h.Store.Views.Files(im.Table)
	if err != nil || !slices.ContainsFunc(list, func(f filetable.File) bool { return f.Path == "model.gguf" }) {
		t.Errorf("files: %v, %v", list, err)
	}
	if got := f.get(t, evil, "org/model", "v1"); !bytes.Equal(got.body, first.body) {
		t.Error("once the tar is here, its own headers are not used")
	}
	im, err = f.h.Store.Catalog.Image(digest.FromBytes(lie.body))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.h.Store.Views.Files(im.Table); !errdefs.IsInvalidArgument(err) {
		t.Errorf("the model with names that are not in the tar: %v", err)
	}
}

// TestLyingTensors is TestLyingHeaders for tensors of Ollama.
func TestLyingTensors(t *testing.T) {
	t.Parallel()
	good, evil := newUpstream(t), newUpstream(t)
	b := converttest.OllamaTensors(converttest.TensorData, converttest.Tensors(10, 64))
	for _, u := range []*upstream{good, evil} {
		u.Add("org/model", "v1", b.Built)
	}
	for d, p := range b.Blobs {
		if lie := bytes.Replace(p, []byte(`"BF16"`), []byte(`"I16" `), 1); !bytes.Equal(lie, p) {
			evil.Serve("/v2/org/model/blobs/"+d.String(), lie)
		}
	}
	f := newFacade(t, remote.Options{})
	lie := f.get(t, evil, "org/model", "v1")
	first := f.get(t, good, "org/model", "v1")
	if bytes.Equal(first.body, lie.body) {
		t.Fatal("the headers that another registry gave are used")
	}
	im, err := f.h.Store.Catalog.Image(digest.FromBytes(first.body))
	if err != nil {
		t.Fatal(err)
	}
	files(t, f, im)
	if got := f.get(t, evil, "org/model", "v1"); !bytes.Equal(got.body, first.body) {
		t.Error("once the tensors are here, their own headers are not used")
	}
}

// TestDamaged has an image whose manifest object was moved out of the way: it is made again.
func TestDamaged(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.Add("org/model", "v1", converttest.ModelPackRaw(converttest.Files(weights(1000))))
	f := newFacade(t, remote.Options{})
	first := f.get(t, u, "org/model", "v1")
	path := filepath.Join(f.h.Store.ObjectsDir(), store.ObjectName(digest.FromBytes(first.body)))
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := f.get(t, u, "org/model", "v1"); !bytes.Equal(got.body, first.body) {
		t.Error("made again, it differs")
	}
}

// TestSources names what an image is pulled by: those are the sources, in that order, and nothing
// that others resolved it from.
func TestSources(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	d := u.PutBlob("a", []byte("blob"))
	f := newFacade(t, remote.Options{Facade: []string{"127.0.0.1:1"}})
	im := store.Image{Manifest: d, Refs: []string{"aaa.evil/x:1", u.Host() + "/b:1", u.Host() + "/b:2"}}
	l := f.h.Sources(im, u.Host()+"/b", u.Host()+"/a", "127.0.0.1:1/loop", "../bad", "bad")
	var got []string
	for _, s := range l {
		got = append(got, s.Name)
	}
	if diff := cmp.Diff(got, []string{u.Host() + "/b", u.Host() + "/a"}); diff != "" {
		t.Fatalf("sources (-got +want):\n%s", diff)
	}
	if diff := cmp.Diff(registry.Names(im), []string{"aaa.evil/x", u.Host() + "/b"}); diff != "" {
		t.Errorf("names (-got +want):\n%s", diff)
	}
	body, _, err := l[1].Fetch(t.Context(), d, 4, 0, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if p, err := io.ReadAll(body); err != nil || string(p) != "blob" {
		t.Errorf("%q, %v", p, err)
	}
	if _, _, err := l[0].Fetch(t.Context(), digest.FromString("none"), 4, 0, 4); !errdefs.IsNotFound(err) {
		t.Errorf("a blob that is not there: %v", err)
	}
}

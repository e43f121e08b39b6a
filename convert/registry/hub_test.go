package registry_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/huggingface"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// hubOptions are those of a client of a Hub.
func hubOptions(t *testing.T, h *converttest.Hub) remote.Options {
	t.Helper()
	hub, err := huggingface.New(h.URL)
	if err != nil {
		t.Fatal(err)
	}
	return remote.Options{Dialects: map[string]remote.Dialect{"hf.co": hub}, AllowHosts: []string{strings.TrimPrefix(h.CDN.URL, "http://")}}
}

// TestHub pulls a private repository of the Hub with a pull secret, and fetches it after a restart, when its branch
// has moved on. Who has no token gets nothing of it.
func TestHub(t *testing.T) {
	t.Parallel()
	h := converttest.NewHub(t)
	h.Protect("Org/Model", "hf_secret")
	files := map[string]converttest.HubFile{"w.gguf": {Data: weights(9 << 20), LFS: true}, "README.md": {Data: []byte("read me")}}
	h.Push("Org/Model", "main", files)
	f := newFacade(t, hubOptions(t, h))
	tag := "/v2/Org/Model/manifests/main"
	if got := f.ask(t, http.MethodGet, tag, "hf.co"); got.status != http.StatusUnauthorized {
		t.Fatalf("without a token: status %d", got.status)
	}
	got := f.ask(t, http.MethodGet, tag, "hf.co", basic("anybody:hf_secret")...)
	if got.status != http.StatusOK {
		t.Fatalf("status %d: %s", got.status, got.body)
	}
	d := digest.FromBytes(got.body)
	if again := f.ask(t, http.MethodGet, "/v2/Org/Model/manifests/"+d.String(), "hf.co"); again.status != http.StatusUnauthorized {
		t.Errorf("by digest, without a token: status %d", again.status)
	}
	im, err := f.h.Store.Catalog.Image(d)
	if err != nil {
		t.Fatal(err)
	}

	h.Push("Org/Model", "main", map[string]converttest.HubFile{"w.gguf": {Data: []byte("GGUF of tomorrow"), LFS: true}})
	client, err := remote.New(hubOptions(t, h))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	restarted := &registry.Handler{Resolver: resolve.Resolver{Upstream: client}, Store: f.h.Store, Secrets: f.h.Secrets}
	if err := f.h.Store.Hydrate(t.Context(), im.Table, store.HydrateOptions{Sources: restarted.Sources(im, "hf.co/Org/Model")}); err != nil {
		t.Fatal(err)
	}
	want := map[string]digest.Digest{}
	for name, f := range files {
		want[name] = digest.FromBytes(f.Data)
	}
	there, err := f.h.Store.Views.Files(im.Table)
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]digest.Digest{}
	for _, f := range there {
		have[f.Path] = f.Digest
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if l := h.Leaked(); len(l) != 0 {
		t.Errorf("the other host got the token: %q", l)
	}
}

// TestHubGated pulls a gated repository, whose files the Hub lists to everybody. A token that was granted access opens
// it to its caller only, and stays known, so that the rest can be fetched.
func TestHubGated(t *testing.T) {
	t.Parallel()
	h := converttest.NewHub(t)
	w := weights(9 << 20)
	h.Push("Org/Gated", "main", map[string]converttest.HubFile{"w.gguf": {Data: w, LFS: true}, "README.md": {Data: []byte("read me")}})
	h.Gate("Org/Gated", "hf_granted")
	f := newFacade(t, hubOptions(t, h))
	tag := "/v2/Org/Gated/manifests/main"
	ask := func(path string, header ...string) reply { return f.ask(t, http.MethodGet, path, "hf.co", header...) }
	if got := ask(tag); got.status != http.StatusUnauthorized {
		t.Fatalf("without a token: status %d", got.status)
	}
	got := ask(tag, basic("anybody:hf_granted")...)
	if got.status != http.StatusOK {
		t.Fatalf("status %d: %s", got.status, got.body)
	}
	d := digest.FromBytes(got.body)
	for what, path := range map[string]string{"tag": tag, "digest": "/v2/Org/Gated/manifests/" + d.String()} {
		if got := ask(path); got.status != http.StatusUnauthorized {
			t.Errorf("by %s, without a token: status %d", what, got.status)
		}
		if got := ask(path, basic("anybody:hf_another")...); got.status == http.StatusOK {
			t.Errorf("by %s, with a token of another account: status %d", what, got.status)
		}
	}
	im, err := f.h.Store.Catalog.Image(d)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"hf.co/Org/Gated"}, im.PrivateNames); diff != "" {
		t.Errorf("private names (-want +got):\n%s", diff)
	}
	if _, public, err := f.h.Origin(t.Context(), im.Origin.Digest, im, []string{"hf.co/Org/Gated"}, true); len(public) > 0 {
		t.Errorf("public: %q, %v", public, err)
	}
	if err := f.h.Store.Hydrate(t.Context(), im.Table, store.HydrateOptions{Sources: f.h.Sources(im, "hf.co/Org/Gated")}); err != nil {
		t.Errorf("the rest: %v", err)
	}
}

package registry_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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

// whenLogged calls the function when a message is logged.
type whenLogged struct {
	slog.Handler
	message string
	f       func()
}

func (h whenLogged) Enabled(context.Context, slog.Level) bool { return true }

func (h whenLogged) Handle(_ context.Context, r slog.Record) error {
	if r.Message == h.message {
		h.f()
	}
	return nil
}

// TestHubLimit: when the limit of everybody is reached, a caller is asked for credentials before anything waits. A token
// has a limit of its own. A caller without one waits, and what it gets is public.
func TestHubLimit(t *testing.T) {
	t.Parallel()
	h := converttest.NewHub(t)
	h.Page = 100
	for _, repo := range []string{"Org/Token", "Org/None", "Org/Node", "Org/Long"} {
		h.Push(repo, "main", map[string]converttest.HubFile{"w.gguf": {Data: weights(1 << 20), LFS: true}, "README.md": {Data: []byte(repo)}})
	}
	limit := func(n, seconds int) {
		h.Limit("", n, http.Header{"Ratelimit": {fmt.Sprintf(`"resolvers";r=0;t=%d`, seconds)}})
	}
	f := newFacade(t, hubOptions(t, h))
	var waits atomic.Int64
	f.h.Log = slog.New(whenLogged{slog.DiscardHandler, "waits for the limit of a registry", func() {
		waits.Add(1)
		limit(100, 1)
	}})
	tag := func(repo string) string { return "/v2/" + repo + "/manifests/main" }
	limit(0, 300)
	if got := f.askOnce(t, http.MethodHead, tag("Org/Token"), "hf.co"); got.status != http.StatusUnauthorized {
		t.Errorf("without a token: status %d", got.status)
	}
	if got := f.ask(t, http.MethodGet, tag("Org/Token"), "hf.co", basic("anybody:hf_any")...); got.status != http.StatusOK || waits.Load() != 0 {
		t.Errorf("with a token: status %d: %s; %d waits", got.status, got.body, waits.Load())
	}
	limit(0, 2*60*60)
	if got := f.ask(t, http.MethodGet, tag("Org/Long"), "hf.co"); got.status != http.StatusForbidden || !strings.Contains(string(got.body), "HF_TOKEN") || strings.Contains(string(got.body), "docker login") {
		t.Errorf("a limit that is too long to wait for: status %d: %s", got.status, got.body)
	}
	limit(0, 1)
	got := f.ask(t, http.MethodGet, tag("Org/None"), "hf.co")
	if got.status != http.StatusOK || waits.Load() != 1 {
		t.Fatalf("who has no token: status %d: %s; %d waits", got.status, got.body, waits.Load())
	}
	public := []digest.Digest{digest.FromBytes(got.body)}
	limit(0, 1)
	patient := remote.WithPatience(t.Context(), func(host string, _ time.Time) {
		if host != "" {
			limit(100, 1)
		}
	})
	im, err := f.h.Convert(patient, remote.Ref{Host: "hf.co", Repository: "Org/Node", Tag: "main"})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range append(public, im.Manifest) {
		if im, err := f.h.Store.Catalog.Image(d); err != nil || len(im.PrivateNames) > 0 {
			t.Errorf("%s: private for %q, %v", im.Refs, im.PrivateNames, err)
		}
	}
}

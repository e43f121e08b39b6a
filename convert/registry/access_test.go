package registry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestPrivate pulls a private model as containerd does: without credentials, then with the
// pull secret; then others try to get at it.
func TestPrivate(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	b := converttest.ModelPackTarGzip(converttest.Files(weights(5000)))
	u.Add("secret/model", "v1", b)
	u.Add("public/other", "v1", converttest.DockerAIGGUF(converttest.Files(weights(5000))))
	u.SetUser("secret/model", "alice:s3cr3t-value")
	f := newFacade(t, remote.Options{})
	alice, eve := basic("alice:s3cr3t-value"), basic("eve:guess-value")

	tag := "/v2/secret/model/manifests/v1"
	got := f.ask(t, http.MethodHead, tag, u.Host())
	if got.status != 401 || !strings.Contains(got.header.Get("WWW-Authenticate"), "imagePullSecrets") {
		t.Fatalf("without credentials: status %d, challenge %q", got.status, got.header.Get("WWW-Authenticate"))
	}
	if n := f.ask(t, http.MethodGet, tag, u.Host(), eve...).status; n != 401 {
		t.Errorf("with wrong credentials: status %d, want 401", n)
	}
	got = f.get(t, u, "secret/model", "v1", alice...)
	m := decode[ocispec.Manifest](t, got)
	d := digest.FromBytes(got.body)

	paths := []string{
		"/v2/secret/model/manifests/" + d.String(),
		"/v2/secret/model/blobs/" + m.Config.Digest.String(),
		"/v2/secret/model/blobs/" + m.Layers[len(m.Layers)-1].Digest.String(),
		"/v2/secret/model/blobs/" + m.Layers[0].Digest.String(),
	}
	for _, p := range paths {
		other := strings.Replace(p, "secret/model", "public/other", 1)
		for _, tt := range []struct {
			name   string
			path   string
			header []string
			ok     bool
		}{
			{"alice", p, alice, true},
			{"nobody", p, nil, false},
			{"eve", p, eve, false},
			{"nobody through a public repository", other, nil, false},
			{"alice again", p, alice, true},
			{"nobody again", p, nil, false},
		} {
			if tt.path == other && strings.Contains(p, m.Layers[0].Digest.String()) {
				continue // upstream's to decide; the test's has no link between both
			}
			if got := f.ask(t, http.MethodGet, tt.path, u.Host(), tt.header...); (got.status == 200) != tt.ok {
				t.Errorf("%s, %s: status %d", tt.name, tt.path, got.status)
			}
		}
	}

	ims := f.h.Store.Catalog.Images()
	if len(ims) != 1 || !slices.Equal(ims[0].PrivateNames, []string{u.Host() + "/secret/model"}) {
		t.Fatalf("images %+v", ims)
	}
	// The daemon fetches with what it remembers.
	if err := f.h.Store.Hydrate(t.Context(), ims[0].Table, store.HydrateOptions{Sources: f.h.Sources(ims[0], registry.Names(ims[0])...)}); err != nil {
		t.Errorf("fetch with the credentials of the caller: %v", err)
	}
	if l := f.h.Secrets.Of(u.Host() + "/secret/model"); len(l) != 1 || l[0].Username != "alice" {
		t.Errorf("credentials of the repository: %v", l)
	}
	if l := f.h.Secrets.Of(u.Host() + "/public/other"); l != nil {
		t.Errorf("credentials of another repository: %v", l)
	}
	if s := f.logs.String(); strings.Contains(s, "s3cr3t-value") || strings.Contains(s, "guess-value") || strings.Contains(s, alice[1]) {
		t.Error("the log has credentials")
	}
	assertNotOnDisk(t, f.h.Store.Dir(), "s3cr3t-value")
}

// assertNotOnDisk fails the test if a file below dir has s in it.
func assertNotOnDisk(t *testing.T, dir, s string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		p, err := os.ReadFile(path)
		if err == nil && bytes.Contains(p, []byte(s)) {
			t.Errorf("%s has credentials", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestSameDocuments: images of a stranger with the config and table of a model cost the registry of that model
// nothing, and its own image is found among them.
func TestSameDocuments(t *testing.T) {
	t.Parallel()
	const strangers = 30
	for user, most := range map[string]int{"": 0, "alice:s3cret": 2} { // without credentials and with
		t.Run(user, func(t *testing.T) {
			t.Parallel()
			u, e, f := newUpstream(t), newUpstream(t), newFacade(t, remote.Options{})
			u.Add("org/m", "v1", converttest.ModelPackRaw(converttest.Files(weights(1000))))
			var header []string
			if user != "" {
				u.SetUser("org/m", user)
				header = basic(user)
			}
			m := decode[ocispec.Manifest](t, f.get(t, u, "org/m", "v1", header...))
			ahead := &converttest.Built{MediaType: mediatype.OCIManifest, Blobs: map[digest.Digest][]byte{}}
			documents := []ocispec.Descriptor{m.Config, m.Layers[len(m.Layers)-1]}
			for _, d := range documents {
				p, err := f.h.Store.ReadBytes(d.Digest, d.Size, nil)
				if err != nil {
					t.Fatal(err)
				}
				ahead.Blobs[d.Digest] = p
			}
			for i := range strangers {
				var err error
				m.Annotations[mediatype.AnnotationContextLength] = fmt.Sprint(i + 1)
				if ahead.Manifest, err = json.Marshal(m); err != nil {
					t.Fatal(err)
				}
				tag := fmt.Sprint("v", i)
				e.Add("x/m", tag, ahead)
				f.get(t, e, "x/m", tag)
			}
			if n := len(f.h.Store.Catalog.ImagesWith(m.Config.Digest)); n <= strangers {
				t.Fatalf("%d images have the config", n)
			}
			u.Count("")
			for _, d := range documents {
				if r := f.ask(t, http.MethodGet, "/v2/org/m/blobs/"+d.Digest.String(), u.Host(), header...); r.status != http.StatusOK {
					t.Errorf("status %d: %.300s", r.status, r.body)
				}
			}
			if n := u.Count(""); n > most {
				t.Errorf("%d requests for two blobs, want at most %d", n, most)
			}
			// A repository that has none of them is asked for a few.
			if r := f.ask(t, http.MethodGet, "/v2/org/other/blobs/"+m.Config.Digest.String(), u.Host(), header...); r.status == http.StatusOK {
				t.Errorf("another repository: status %d", r.status)
			}
			if n := u.Count(""); n == 0 || n > 10 {
				t.Errorf("%d requests at a repository that has none of them", n)
			}
		})
	}
}

// TestPublicWithCredentials checks that credentials that were not needed make nothing private.
func TestPublicWithCredentials(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.Add("org/model", "v1", converttest.ModelPackRaw(converttest.Files(weights(1000))))
	f := newFacade(t, remote.Options{})
	got := f.get(t, u, "org/model", "v1", basic("alice:s3cr3t-value")...)
	d := digest.FromBytes(got.body)
	u.Count("")
	for range 3 {
		f.get(t, u, "org/model", d.String())
	}
	if n := u.Count(""); n != 0 {
		t.Errorf("%d requests upstream for a public image by digest", n)
	}
	if l := f.h.Secrets.Of(u.Host() + "/org/model"); l != nil {
		t.Error("credentials that were not needed are kept")
	}
}

// TestBecomesPublic makes a private repository public.
func TestBecomesPublic(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.Add("org/model", "v1", converttest.ModelPackRaw(converttest.Files(weights(1000))))
	u.SetUser("org/model", "alice:s3cr3t-value")
	f := newFacade(t, remote.Options{})
	d := digest.FromBytes(f.get(t, u, "org/model", "v1", basic("alice:s3cr3t-value")...).body)
	u.SetUser("org/model", "")
	f.get(t, u, "org/model", "v1")
	u.Count("")
	f.get(t, u, "org/model", d.String())
	if n := u.Count(""); n != 0 {
		t.Errorf("%d requests upstream for what is public now", n)
	}
}

// TestPrivateOrdinary checks that a private image that passes is not remembered for others.
func TestPrivateOrdinary(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	d := u.Put("secret/image", "v1", ordinary(2), mediatype.OCIManifest)
	u.SetUser("secret/image", "alice:s3cr3t-value")
	f := newFacade(t, remote.Options{})
	f.get(t, u, "secret/image", "v1", basic("alice:s3cr3t-value")...)
	f.get(t, u, "secret/image", d.String(), basic("alice:s3cr3t-value")...)
	for _, header := range [][]string{nil, basic("eve:guess")} {
		if got := f.ask(t, http.MethodGet, "/v2/secret/image/manifests/"+d.String(), u.Host(), header...); got.status != 401 {
			t.Errorf("status %d, want 401", got.status)
		}
	}
}

// TestExpiredSecret has a pull secret that worked and then does not any more, while others can
// read the repository: it must not stand in the way.
func TestExpiredSecret(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	b := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	u.Add("org/model", "v1", b)
	u.SetUser("org/model", "alice:s3cr3t-value")
	f := newFacade(t, remote.Options{})
	f.get(t, u, "org/model", "v1", basic("alice:s3cr3t-value")...)
	im := onlyImage(t, f)
	u.SetUser("org/model", "")
	if n := len(f.h.Sources(im, registry.Names(im)...)); n != 2 {
		t.Errorf("%d sources, want one with the secret and one without", n)
	}
	if err := f.h.Store.Hydrate(t.Context(), im.Table, store.HydrateOptions{Sources: f.h.Sources(im, registry.Names(im)...)}); err != nil {
		t.Errorf("fetch: %v", err)
	}
	f.get(t, u, "org/model", "v1")
	if l := f.h.Secrets.Of(u.Host() + "/org/model"); l != nil {
		t.Error("the secret that expired is still remembered")
	}
	if n := len(f.h.Sources(im, registry.Names(im)...)); n != 1 {
		t.Errorf("%d sources, want one", n)
	}
}

// onlyImage returns the only image in the store of f.
func onlyImage(t *testing.T, f *facade) store.Image {
	t.Helper()
	ims := f.h.Store.Catalog.Images()
	if len(ims) != 1 {
		t.Fatal(ims)
	}
	return ims[0]
}

// nodeSecret gives the node credentials for every host.
func nodeSecret(string, string) (remote.Credentials, error) {
	return remote.Credentials{Username: "node", Secret: "secret-of-the-node"}, nil
}

// TestNodeCredentials has a model that only the node can read. Who asks the facade gets nothing of it,
// before and after the node has brought it; nor has the node what a caller can read.
func TestNodeCredentials(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.Add("ops/model", "v1", converttest.ModelPackRaw(converttest.Files(weights(5000))))
	u.SetUser("ops/model", "node:secret-of-the-node")
	u.Add("team/model", "v1", converttest.ModelPackRaw(converttest.Files(weights(6000))))
	u.SetUser("team/model", "alice:s3cr3t-value")
	image := u.Put("ops/image", "v1", ordinary(2), mediatype.OCIManifest)
	u.SetUser("ops/image", "node:secret-of-the-node")
	f := newFacade(t, remote.Options{Credentials: nodeSecret})

	ask := func(when, path string) {
		t.Helper()
		for _, header := range [][]string{nil, basic("eve:guess")} {
			got := f.ask(t, http.MethodGet, path, u.Host(), header...)
			if got.status != 401 {
				t.Errorf("%s: %s: status %d, want 401", when, path, got.status)
			}
			if s := string(got.body); header == nil && !strings.Contains(s, "imagePullSecrets") {
				t.Errorf("%s: %s: the answer does not say what to do: %s", when, path, s)
			}
		}
	}
	ask("before", "/v2/ops/model/manifests/v1")
	im, err := f.h.Convert(t.Context(), u.ref(t, "ops/model", "v1"))
	if err != nil {
		t.Fatalf("the node converts what it can read: %v", err)
	}
	name := u.Host() + "/ops/model"
	if !slices.Equal(im.PrivateNames, []string{name}) {
		t.Errorf("private names %v, want %s", im.PrivateNames, name)
	}
	ask("after", "/v2/ops/model/manifests/v1")
	ask("after", "/v2/ops/model/manifests/"+im.Manifest.String())
	ask("after", "/v2/ops/model/blobs/"+im.Table.String())
	ask("after", "/v2/ops/image/manifests/v1")
	ask("after", "/v2/ops/image/blobs/"+image.String())

	// An image that was resolved as the node is fetched only with the credentials of the node.
	if err := f.h.Store.Hydrate(t.Context(), im.Table, store.HydrateOptions{Sources: f.h.Sources(im, name)}); !errdefs.IsUnauthorized(err) {
		t.Errorf("fetched for a caller: %v, want unauthorized", err)
	}
	if err := f.h.Store.Hydrate(t.Context(), im.Table, store.HydrateOptions{Sources: f.h.NodeSources(im, name)}); err != nil {
		t.Errorf("fetched for the node: %v", err)
	}
	ask("complete", "/v2/ops/model/manifests/"+im.Manifest.String())

	got := f.get(t, u, "team/model", "v1", basic("alice:s3cr3t-value")...)
	if _, err := f.h.Convert(t.Context(), u.ref(t, "team/model", "v1")); !errdefs.IsUnauthorized(err) || !strings.Contains(err.Error(), "docker_config") {
		t.Errorf("the node, of what a caller can read: %v, want unauthorized", err)
	}
	if im, err = f.h.Store.Catalog.Image(digest.FromBytes(got.body)); err != nil {
		t.Fatal(err)
	}
	if err := f.h.Restore(t.Context(), u.ref(t, "team/model", "v1"), im); err != nil {
		t.Errorf("documents that a caller's model has lost: %v", err)
	}
}

// TestConvertAs has the node ask with a pull secret, and asks what a pull without credentials would be served.
func TestConvertAs(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	for _, name := range []string{"team/model", "ops/model", "open/model"} {
		u.Add(name, "v1", converttest.ModelPackRaw(converttest.Files(weights(5000+len(name)))))
	}
	u.SetUser("team/model", "alice:s3cr3t-value")
	u.SetUser("ops/model", "node:secret-of-the-node")
	f := newFacade(t, remote.Options{Credentials: nodeSecret})
	ref := u.ref(t, "team/model", "v1")
	if _, err := f.h.ConvertAs(t.Context(), ref, remote.Credentials{Username: "eve", Secret: "guess"}); !errdefs.IsUnauthorized(err) {
		t.Errorf("a wrong secret: %v, want unauthorized", err)
	}
	if n := len(f.h.Sources(store.Image{}, ref.Name())); n != 1 {
		t.Errorf("%d sources after a wrong secret, want the one without a secret", n)
	}
	im, err := f.h.ConvertAs(t.Context(), ref, remote.Credentials{Username: "alice", Secret: "s3cr3t-value"})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.h.Store.Hydrate(t.Context(), im.Table, store.HydrateOptions{Sources: f.h.Sources(im, ref.Name())}); err != nil {
		t.Errorf("the download: %v", err)
	}
	if err := f.h.ServedToAll(t.Context(), ref, im); !errdefs.IsUnauthorized(err) {
		t.Errorf("a pull of alice's model without her secret: %v, want unauthorized", err)
	}
	for name, served := range map[string]bool{"ops/model": false, "open/model": true} {
		ref := u.ref(t, name, "v1")
		im, err := f.h.Convert(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.h.ServedToAll(t.Context(), ref, im); (err == nil) != served || err != nil && !errdefs.IsUnauthorized(err) {
			t.Errorf("a pull of %s without credentials: %v; served should be %v", name, err, served)
		}
	}
}

// TestSharedCredentials has a host for which the node lets everybody use its credentials.
func TestSharedCredentials(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.Add("ops/model", "v1", converttest.ModelPackRaw(converttest.Files(weights(5000))))
	u.SetUser("ops/model", "node:secret-of-the-node")
	f := newFacade(t, remote.Options{Credentials: nodeSecret, Shared: func(host string) bool { return host == u.Host() }})
	f.get(t, u, "ops/model", "v1")
	im := onlyImage(t, f)
	if err := f.h.Store.Hydrate(t.Context(), im.Table, store.HydrateOptions{Sources: f.h.Sources(im, registry.Names(im)...)}); err != nil {
		t.Errorf("fetch: %v", err)
	}
	if im, err := f.h.Convert(t.Context(), u.ref(t, "ops/model", "v1")); err != nil {
		t.Error(err)
	} else if err := f.h.ServedToAll(t.Context(), u.ref(t, "ops/model", "v1"), im); err != nil {
		t.Errorf("a pull without credentials: %v", err)
	}
}

// TestPrivateByName has an image that is private by one name and public by another.
func TestPrivateByName(t *testing.T) {
	t.Parallel()
	u, attacker := newUpstream(t), newUpstream(t)
	b := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	u.Add("secret/model", "v1", b)
	u.SetUser("secret/model", "alice:s3cr3t-value")
	attacker.Add("my/own", "v1", b)
	f := newFacade(t, remote.Options{})
	alice := basic("alice:s3cr3t-value")
	d := digest.FromBytes(f.get(t, u, "secret/model", "v1", alice...).body).String()
	f.get(t, attacker, "my/own", "v1")
	f.get(t, attacker, "my/own", d)
	for _, tt := range []struct {
		u          *upstream
		repository string
		header     []string
		want       int
	}{
		{u, "secret/model", nil, 401},
		{u, "secret/model", basic("eve:guess"), 401},
		{u, "secret/model", alice, 200},
		{attacker, "my/own", nil, 200},
		{attacker, "never/seen", nil, 404}, // it does not have the origin
	} {
		if got := f.ask(t, http.MethodGet, "/v2/"+tt.repository+"/manifests/"+d, tt.u.Host(), tt.header...); got.status != tt.want {
			t.Errorf("%s: status %d, want %d", tt.repository, got.status, tt.want)
		}
	}
	attacker.Add("also/there", "v9", b)
	if n := f.ask(t, http.MethodGet, "/v2/also/there/manifests/"+d, attacker.Host()).status; n != 200 {
		t.Errorf("a name that has the origin too: status %d", n)
	}
}

// TestStalledRegistry uses a registry that never responds for a blob: pulls of the same model from another
// registry do not wait for it.
func TestStalledRegistry(t *testing.T) {
	t.Parallel()
	b := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	good := newUpstream(t)
	good.Add("org/model", "v1", b)
	arrived, stop := make(chan struct{}, 8), make(chan struct{})
	stalls := newUpstream(t)
	stalls.Put("org/model", "v1", b.Manifest, "")
	stalls.Before(func(_ http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/manifests/") {
			arrived <- struct{}{}
			<-stop
		}
		return false
	})
	t.Cleanup(func() { close(stop) })
	f := newFacade(t, remote.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := f.h.Convert(ctx, stalls.ref(t, "org/model", "v1"))
		done <- err
	}()
	<-arrived
	ctx2, cancel2 := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel2()
	if _, err := f.h.Convert(ctx2, good.ref(t, "org/model", "v1")); err != nil {
		t.Errorf("from another registry: %v", err)
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("the registry that stalls gave an image")
	}
}

// TestMirrorOpensNoManifest has a mirror give everybody what it got with somebody's credentials: on the node, the model
// stays private, because only the registry says who may have it.
func TestMirrorOpensNoManifest(t *testing.T) {
	t.Parallel()
	u, mirror := newUpstream(t), newUpstream(t)
	b, open := converttest.ModelPackRaw(converttest.Files(weights(5000))), converttest.ModelPackRaw(converttest.Files(weights(6000)))
	for _, u := range []*upstream{u, mirror} {
		u.Add("secret/model", "v1", b)
		u.Add("open/model", "v1", open)
	}
	u.SetUser("secret/model", "alice:s3cr3t")
	f := newFacade(t, remote.Options{HostsDir: mirrored(t, u, mirror)})
	ask := func(path string, header ...string) reply {
		return f.ask(t, http.MethodGet, "/v2/"+path, "registry.example", header...)
	}
	pulled := ask("secret/model/manifests/v1", basic("alice:s3cr3t")...)
	if pulled.status != http.StatusOK || mirror.Count("/manifests/") == 0 {
		t.Fatalf("with a pull secret, by the mirror: status %d: %s", pulled.status, pulled.body)
	}
	if got := ask("open/model/manifests/v1"); got.status != http.StatusOK {
		t.Fatalf("a public model: status %d: %s", got.status, got.body)
	}
	want := func(status int) {
		t.Helper()
		for _, object := range []string{"v1", digest.FromBytes(b.Manifest).String(), digest.FromBytes(pulled.body).String()} {
			for who, header := range map[string][]string{"nobody": nil, "eve": basic("eve:guess")} {
				if got := ask("secret/model/manifests/"+object, header...); got.status != status {
					t.Errorf("%s, %s: status %d, want %d: %.200s", object, who, got.status, status, got.body)
				}
			}
		}
		im, err := f.h.Store.Catalog.Image(digest.FromBytes(pulled.body))
		if err != nil || !slices.Equal(im.PrivateNames, []string{"registry.example/secret/model"}) {
			t.Errorf("private names %v, %v", im.PrivateNames, err)
		}
		if len(f.h.Secrets.Of("registry.example/secret/model")) != 1 {
			t.Error("the credentials are forgotten")
		}
	}
	want(http.StatusUnauthorized)

	// Nobody says who may have it while the registry is down. What is public already stays so.
	u.Before(failing(http.StatusServiceUnavailable))
	want(http.StatusForbidden)
	if got := ask("open/model/manifests/v1"); got.status != http.StatusOK {
		t.Errorf("a model that is public, while the registry is down: status %d: %s", got.status, got.body)
	}
	mirror.Add("new/model", "v1", b)
	if got := ask("new/model/manifests/v1"); got.status != http.StatusForbidden || !strings.Contains(got.errorText(t), "upstream.mirror_only") {
		t.Errorf("a new model, while the registry is down: status %d: %s", got.status, got.body)
	}
	mirror.Put("new/image", "v1", ordinary(1), mediatype.OCIManifest)
	if got := ask("new/image/manifests/v1"); got.status != http.StatusOK {
		t.Errorf("an ordinary image, while the registry is down: status %d: %s", got.status, got.body)
	}
}

// mirrored returns a directory in which u is registry.example, with a mirror.
func mirrored(t *testing.T, u, mirror *upstream) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "registry.example"), 0o755); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("server = %q\n[host.%q]\n", u.URL, mirror.URL)
	if err := os.WriteFile(filepath.Join(dir, "registry.example", "hosts.toml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

package registry_test

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/ballast-dev/ballast/convert/signature/cosign"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// noRanges is a hook of a server without ranges.
func noRanges(_ http.ResponseWriter, r *http.Request) bool { r.Header.Del("Range"); return false }

// newCartonFacade returns a facade that maps the host carton.example to a server.
func newCartonFacade(t *testing.T, s *registrytest.Server, o remote.Options) *facade {
	t.Helper()
	template := s.URL + "/{repository}/{tag}.carton"
	o.NamedURLs = []string{template}
	f := newFacade(t, o)
	f.h.Archives = map[string]string{"carton.example": "carton+" + template}
	f.h.Settings = format.Settings{HTTP: f.h.Upstream.Do, TempDir: t.TempDir(), Log: f.h.Log}
	t.Cleanup(func() { f.h.Close() })
	return f
}

// convertURL converts the carton at a URL.
func (f *facade) convertURL(t *testing.T, address string) (store.Image, error) {
	t.Helper()
	ref, err := resolve.ParseRef("carton+" + address)
	if err != nil {
		return store.Image{}, err
	}
	return f.h.Convert(t.Context(), ref)
}

// TestCartonURL pulls a carton by a name that stands for a URL, from a server with ranges and from
// one without, and by the URL itself.
func TestCartonURL(t *testing.T) {
	t.Parallel()
	want := converttest.GoodCarton(weights(3 << 20))
	for name, ranges := range map[string]bool{"ranges": true, "no ranges": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := registrytest.New(t)
			if !ranges {
				s.Before(noRanges)
			}
			s.Serve("/org/model/v1.carton", want.Bytes())
			f := newCartonFacade(t, s, remote.Options{})

			tag := "/v2/org/model/manifests/v1"
			if n := f.ask(t, http.MethodHead, tag, "carton.example").status; n != 200 {
				t.Fatalf("HEAD: status %d", n)
			}
			got := f.ask(t, http.MethodGet, tag, "carton.example")
			d := digest.FromBytes(got.body)
			if again := f.ask(t, http.MethodGet, "/v2/org/model/manifests/"+d.String(), "carton.example"); !bytes.Equal(again.body, got.body) {
				t.Error("the manifest by digest differs")
			}
			m := decode[ocispec.Manifest](t, got)
			im, err := f.h.Store.Catalog.Image(d)
			if err != nil {
				t.Fatal(err)
			}
			if want := (filetable.Origin{Format: "carton", Digest: want.Hash(), Mapping: convert.MappingVersion}); im.Origin != want {
				t.Errorf("origin is %+v, want %+v", im.Origin, want)
			}
			if diff := cmp.Diff(im.Refs, []string{"carton.example/org/model:v1"}); diff != "" {
				t.Errorf("refs (-got +want):\n%s", diff)
			}

			// containerd in its local mode asks for all blobs.
			for i, l := range append(m.Layers, m.Config) {
				path := "/v2/org/model/blobs/" + l.Digest.String()
				blob := f.ask(t, http.MethodGet, path, "carton.example")
				if blob.status != 200 || digest.FromBytes(blob.body) != l.Digest || int64(len(blob.body)) != l.Size {
					t.Errorf("layer %d (%s, %d bytes): status %d, %d bytes", i, l.MediaType, l.Size, blob.status, len(blob.body))
				}
				if head := f.ask(t, http.MethodHead, path, "carton.example"); head.header.Get("Content-Length") != blob.header.Get("Content-Length") {
					t.Errorf("layer %d: HEAD has another length", i)
				}
			}
			if diff := cmp.Diff(files(t, f, im), wanted(want.Model())); diff != "" {
				t.Errorf("files (-got +want):\n%s", diff)
			}
			if n := s.Count("/org/model/v1.carton"); !ranges && n != 1 {
				t.Errorf("%d requests of a server without ranges, want 1", n)
			}

			im2, err := f.convertURL(t, s.URL+"/org/model/v1.carton")
			if err != nil || im2.Manifest != d {
				t.Fatalf("by URL: %+v, %v; want %s", im2, err, d)
			}
			if diff := cmp.Diff(im2.Refs, []string{"carton+" + s.URL + "/org/model/v1.carton", "carton.example/org/model:v1"}); diff != "" {
				t.Errorf("refs (-got +want):\n%s", diff)
			}
			byHash := f.ask(t, http.MethodGet, "/v2/org/model/manifests/"+want.Hash().String(), "carton.example")
			if byHash.status != 403 || !strings.Contains(byHash.errorText(t), d.String()) {
				t.Errorf("by model hash: status %d, want 403 that names %s: %s", byHash.status, d, byHash.body)
			}
		})
	}
}

// TestCartonPrefix pulls a carton by a name and by its URL, which have other places in mounts.
func TestCartonPrefix(t *testing.T) {
	t.Parallel()
	s := registrytest.New(t)
	s.Serve("/org/model/v1.carton", converttest.GoodCarton(weights(1<<20)).Bytes())
	f := newCartonFacade(t, s, remote.Options{})
	f.h.Prefix = func(name string) string { return map[string]string{"carton.example/org/model": "models"}[name] }
	for range 2 {
		placed, err := f.h.Store.Catalog.Image(digest.FromBytes(f.ask(t, http.MethodGet, "/v2/org/model/manifests/v1", "carton.example").body))
		if err != nil || placed.Origin.Prefix != "models" {
			t.Errorf("by name: %+v, %v", placed, err)
		}
		if plain, err := f.convertURL(t, s.URL+"/org/model/v1.carton"); err != nil || plain.Origin.Prefix != "" || plain.Table == placed.Table {
			t.Errorf("by URL: %+v, %v", plain, err)
		}
	}
}

// TestCartonURLRefused asks for what is not there.
func TestCartonURLRefused(t *testing.T) {
	t.Parallel()
	s := registrytest.New(t)
	good := converttest.GoodCarton(weights(1000))
	s.Serve("/org/model/v1.carton", good.Bytes())
	s.Serve("/org/other/v1.carton", []byte("<html>not a carton"))
	f := newCartonFacade(t, s, remote.Options{})
	d := digest.FromBytes(f.ask(t, http.MethodGet, "/v2/org/model/manifests/v1", "carton.example").body)
	for path, want := range map[string]int{
		"/v2/org/model/manifests/v2":                                      404,
		"/v2/org/other/manifests/v1":                                      403,
		"/v2/org/other/manifests/" + d.String():                           404, // another name
		"/v2/org/model/manifests/" + digest.FromString("x").String():      404,
		"/v2/org/model/blobs/" + digest.FromString("x").String():          404,
		"/v2/org/other/blobs/" + digest.FromBytes(weights(1000)).String(): 404,
	} {
		if got := f.ask(t, http.MethodGet, path, "carton.example"); got.status != want {
			t.Errorf("%s: status %d, want %d: %s", path, got.status, want, got.body)
		}
	}
	for _, address := range []string{"file:///etc/passwd", "https://u:p@example.com/x.carton", "http://10.0.0.1/x.carton", "https://127.0.0.1/x.carton", "x"} {
		if im, err := f.convertURL(t, address); err == nil {
			t.Errorf("%s: %+v", address, im)
		}
	}
}

// TestCartonChanged replaces the carton at a URL: the image of the old one can be fetched no
// more, and never gets files of the new one.
func TestCartonChanged(t *testing.T) {
	t.Parallel()
	s := registrytest.New(t)
	first := converttest.GoodCarton(weights(1000))
	s.Serve("/a/b.carton", first.Bytes())
	f := newCartonFacade(t, s, remote.Options{})
	im, err := f.convertURL(t, s.URL+"/a/b.carton")
	if err != nil {
		t.Fatal(err)
	}
	s.Serve("/a/b.carton", converttest.GoodCarton(weights(2000)).Bytes())
	f.h.Close() // as a restart does
	err = f.h.Store.Hydrate(t.Context(), im.Table, store.HydrateOptions{Sources: f.h.Sources(im, registry.Names(im)...)})
	if err == nil || !strings.Contains(err.Error(), "has changed") {
		t.Errorf("fetch: %v", err)
	}
	next, err := f.convertURL(t, s.URL+"/a/b.carton")
	if err != nil || next.Manifest == im.Manifest {
		t.Fatalf("%+v, %v", next, err)
	}
	files(t, f, next)
}

// TestCartonSizes has a carton with the MANIFEST of another and a file of a wrong size: it must
// not spoil the other.
func TestCartonSizes(t *testing.T) {
	t.Parallel()
	s := registrytest.New(t)
	good := converttest.GoodCarton(weights(1000))
	manifest := good.ManifestBytes()
	bad := good.With(converttest.CartonFile{Path: "model/weights.bin", Data: weights(900)})
	bad.Manifest = func([]byte) []byte { return manifest }
	s.Serve("/bad/x.carton", bad.Bytes())
	s.Serve("/good/x.carton", good.Bytes())
	f := newCartonFacade(t, s, remote.Options{})
	if _, err := f.convertURL(t, s.URL+"/bad/x.carton"); err != nil {
		t.Fatal(err)
	}
	im, err := f.convertURL(t, s.URL+"/good/x.carton")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(files(t, f, im), wanted(good.Model())); diff != "" {
		t.Errorf("files (-got +want):\n%s", diff)
	}
}

// TestCartonRegistry pulls a carton that is a layer, with credentials.
func TestCartonRegistry(t *testing.T) {
	t.Parallel()
	want := converttest.GoodCarton(weights(3 << 20))
	b := converttest.CartonArtifact(want)
	u := newUpstream(t)
	u.Add("secret/model", "v1", b)
	u.SetUser("secret/model", "alice:s3cr3t-value")
	f := newCartonFacade(t, registrytest.New(t), remote.Options{})
	alice := basic("alice:s3cr3t-value")
	d := digest.FromBytes(f.get(t, u, "secret/model", "v1", alice...).body)
	im, err := f.h.Store.Catalog.Image(d)
	if err != nil {
		t.Fatal(err)
	}
	if want := (filetable.Origin{Format: "carton", Digest: b.Digest(), Mapping: convert.MappingVersion}); im.Origin != want {
		t.Errorf("origin is %+v, want %+v", im.Origin, want)
	}
	u.Count("")
	once, _, err := f.h.Sources(im, registry.Names(im)...)[0].Fetch(t.Context(), digest.FromBytes(weights(3<<20)), 3<<20, 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	once.Close()
	if n := u.Count(""); n != 2 { // where the file starts, and the file: the carton is still open
		t.Errorf("%d requests for a file of a carton that was just converted", n)
	}
	member := "/v2/secret/model/blobs/" + digest.FromBytes(weights(3<<20)).String()
	if got := f.ask(t, http.MethodGet, member, u.Host(), alice...); got.status != 200 || !bytes.Equal(got.body, weights(3<<20)) {
		t.Errorf("a file of the carton: status %d, %d bytes", got.status, len(got.body))
	}
	if n := f.ask(t, http.MethodGet, member, u.Host()).status; n != 401 {
		t.Errorf("a file of the carton without credentials: status %d, want 401", n)
	}
	first := f.h.Sources(im, registry.Names(im)...)[0]
	body, _, err := first.Fetch(t.Context(), digest.FromBytes(weights(3<<20)), 3<<20, 0, 10)
	if err != nil || !transfer.IsPrivate(body) {
		t.Errorf("a file of the carton from %q: private %t, %v", first.Key(), transfer.IsPrivate(body), err)
	}
	body.Close()
	if diff := cmp.Diff(files(t, f, im), wanted(want.Model())); diff != "" {
		t.Errorf("files (-got +want):\n%s", diff)
	}
	if n := f.ask(t, http.MethodGet, member, u.Host()).status; n != 401 {
		t.Errorf("the object without credentials: status %d, want 401", n)
	}
}

// TestCartonMany opens more cartons than are kept open, and fetches all of them.
func TestCartonMany(t *testing.T) {
	t.Parallel()
	s := registrytest.New(t)
	s.Before(noRanges)
	f := newCartonFacade(t, s, remote.Options{})
	var wg sync.WaitGroup
	for i := range 20 {
		c := converttest.GoodCarton(weights(1000 + i))
		path := "/m/" + string(rune('a'+i)) + ".carton"
		s.Serve(path, c.Bytes())
		wg.Go(func() {
			im, err := f.convertURL(t, s.URL+path)
			if err != nil {
				t.Error(err)
				return
			}
			if err := f.h.Store.Hydrate(t.Context(), im.Table, store.HydrateOptions{Sources: f.h.Sources(im, registry.Names(im)...)}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TestCartonSigned prefetches a carton at a signed URL: it is known by a name that does not have the
// signature, which is remembered for as long as the daemon runs and is nowhere else.
func TestCartonSigned(t *testing.T) {
	t.Parallel()
	const signature = "sig=s3cr3t-value"
	signed := registrytest.New(t)
	signed.Serve("/x.carton", converttest.GoodCarton(weights(2000)).Bytes())
	signed.Before(func(w http.ResponseWriter, r *http.Request) bool {
		refused := r.URL.RawQuery != signature
		if refused {
			w.WriteHeader(http.StatusForbidden)
		}
		return refused
	})
	f := newCartonFacade(t, registrytest.New(t), remote.Options{AllowHosts: []string{signed.Host()}})
	ref, err := remote.ParseRef("carton+" + signed.URL + "/x.carton?" + signature)
	if err != nil {
		t.Fatal(err)
	}
	im, err := f.h.Convert(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(im.Refs, []string{ref.Name()}); diff != "" {
		t.Errorf("refs (-got +want):\n%s", diff)
	}
	if err := f.h.Store.Hydrate(t.Context(), im.Table, store.HydrateOptions{Sources: f.h.NodeSources(im, ref.Name())}); err != nil {
		t.Error(err)
	}
	hidden, err := remote.ParseRef(ref.Name())
	if err != nil {
		t.Fatal(err)
	}
	if again, err := f.h.Convert(t.Context(), hidden); err != nil || again.Manifest != im.Manifest {
		t.Errorf("by its name: %v, %v", again.Manifest, err)
	}
	restarted := &registry.Handler{Resolver: f.h.Resolver, Store: f.h.Store}
	if _, err := restarted.Convert(t.Context(), hidden); !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "prefetch the model again") {
		t.Errorf("by its name, after a restart: %v", err)
	}
	if l := restarted.NodeSources(im, ref.Name()); len(l) != 0 {
		t.Errorf("%d sources of an address that is not known", len(l))
	}
	if strings.Contains(f.logs.String(), "s3cr3t") {
		t.Error("the log has the signature")
	}
	assertNotOnDisk(t, f.h.Store.Dir(), "s3cr3t")
}

// TestMemberEndsEarly asks for a file of LINKS whose server ends it early without an error. Afterwards the archive has
// no users.
func TestMemberEndsEarly(t *testing.T) {
	t.Parallel()
	const path = "/weights.bin"
	s := registrytest.New(t)
	data := weights(4<<20 + 1) // smaller files are read before they are sent
	s.Serve(path, data)
	s.Before(func(w http.ResponseWriter, r *http.Request) bool {
		short := r.Method == http.MethodGet && r.URL.Path == path
		if short {
			w.Write(data[:1000])
			w.(http.Flusher).Flush() // without a length
		}
		return short
	})
	linked := converttest.CartonFile{Path: "model/linked.bin", Data: data, URLs: []string{s.URL + path}}
	s.Serve("/org/model/v1.carton", converttest.GoodCarton(weights(1000)).With(linked).Bytes())
	f := newCartonFacade(t, s, remote.Options{AllowHosts: []string{s.Host()}})
	f.ask(t, http.MethodGet, "/v2/org/model/manifests/v1", "carton.example")
	resp, err := http.Get(f.URL + "/v2/org/model/blobs/" + digest.FromBytes(data).String() + "?ns=carton.example")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if n, err := io.Copy(io.Discard, resp.Body); resp.StatusCode != 200 || err == nil {
		t.Errorf("status %d, %d bytes without an error", resp.StatusCode, n)
	}
	if n := f.h.ArchiveUsers(); n != 0 {
		t.Errorf("%d users of archives, want 0", n)
	}
}

// TestMemberOfOthers: a carton says that it has a file with the digest of a private file of another repository. The
// facade gives that file only to the repository that it is from.
func TestMemberOfOthers(t *testing.T) {
	t.Parallel()
	owner, thief := newUpstream(t), newUpstream(t)
	secret := weights(1 << 20)
	f := newCartonFacade(t, registrytest.New(t), remote.Options{})
	owner.Add("org/secret", "v1", converttest.CartonArtifact(converttest.GoodCarton(secret)))
	owner.SetUser("org/secret", "alice:s3cret")
	alice := basic("alice:s3cret")
	im, err := f.h.Store.Catalog.Image(digest.FromBytes(f.get(t, owner, "org/secret", "v1", alice...).body))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.h.Store.Hydrate(t.Context(), im.Table, store.HydrateOptions{Sources: f.h.Sources(im, owner.Host()+"/org/secret")}); err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, len(secret))
	c := converttest.GoodCarton(weights(1000)).With(converttest.CartonFile{Path: "model/stolen.bin", Data: zeros, Method: 8})
	c.Manifest = func(p []byte) []byte {
		return bytes.ReplaceAll(p, []byte(digest.FromBytes(zeros).Encoded()), []byte(digest.FromBytes(secret).Encoded()))
	}
	thief.Add("x/m", "v1", converttest.CartonArtifact(c))
	f.get(t, thief, "x/m", "v1")

	member := "/blobs/" + digest.FromBytes(secret).String()
	// What the carton has there instead may be sent: whoever asks for a digest compares it.
	if got := f.ask(t, http.MethodGet, "/v2/x/m"+member, thief.Host()); bytes.Equal(got.body, secret) {
		t.Error("the facade gives a private file to who knows its digest")
	}
	owner.Count("")
	if got := f.ask(t, http.MethodGet, "/v2/org/secret"+member, owner.Host(), alice...); !bytes.Equal(got.body, secret) {
		t.Errorf("the owner: status %d, %d bytes", got.status, len(got.body))
	}
	if n := owner.Count(""); n > 3 {
		t.Errorf("the owner's registry gets %d requests for a file that is here", n)
	}
}

// TestMirroredCarton has a mirror give another archive: the files are those of the registry, and their bytes may come from
// a mirror.
func TestMirroredCarton(t *testing.T) {
	t.Parallel()
	u, mirror := newUpstream(t), newUpstream(t)
	carton := converttest.GoodCarton(weights(1000))
	u.Add("org/model", "v1", converttest.CartonArtifact(carton))
	path := "/v2/org/model/blobs/" + digest.FromBytes(carton.Bytes()).String()
	mirror.Serve(path, otherCarton(weights(1000)).Bytes())
	f := newFacade(t, remote.Options{HostsDir: mirrored(t, u, mirror)})
	r := f.ask(t, http.MethodGet, "/v2/org/model/manifests/v1", "registry.example")
	im, err := f.h.Store.Catalog.Image(digest.FromBytes(r.body))
	if err != nil {
		t.Fatalf("status %d: %s: %v", r.status, r.body, err)
	}
	table, err := f.h.Store.Table(im.Table)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]digest.Digest{}
	for _, file := range table.Files {
		if got[file.Path] = file.Digest; file.Source.Inline != nil {
			got[file.Path] = digest.FromBytes(file.Source.Inline)
		}
	}
	if diff := cmp.Diff(got, wanted(carton.Model())); diff != "" {
		t.Errorf("files (-got +want):\n%s", diff)
	}
	mirror.Serve(path, carton.Bytes())
	if diff := cmp.Diff(files(t, f, im), wanted(carton.Model())); diff != "" || mirror.Count(path) == 0 {
		t.Errorf("%d requests of the mirror; files (-got +want):\n%s", mirror.Count(path), diff)
	}
}

// TestCartonSignatures: a signature of the manifest does not cover what the registry gives for the archive, those of the
// files and of the converted image do.
func TestCartonSignatures(t *testing.T) {
	t.Parallel()
	key, public := converttest.Signer(t, t.TempDir())
	carton := converttest.GoodCarton(weights(1000))
	b := converttest.CartonArtifact(carton)
	archive := digest.FromBytes(carton.Bytes())
	bundle := func(of digest.Digest) []byte { return bundleOf(t, key, cosign.Statement(of)) }
	modelFiles := sign(t, key, slices.Collect(maps.Values(carton.Model())))
	for _, tt := range []struct {
		name, kind string
		put        func(u *upstream, converted digest.Digest)
		want       string // of the error for the archive that was signed; empty: answered
		other      string // of the error for another one
	}{
		{"cosign, the manifest", signature.TypeCosign, func(u *upstream, _ digest.Digest) {
			u.attach(t, "api", "team/m", b.Digest(), mediatype.Bundle, mediatype.Bundle, bundle(b.Digest()))
		}, "does not cover the files in its archive", "does not cover the files in its archive"},
		{"cosign, the manifest, legacy", signature.TypeCosign, func(u *upstream, _ digest.Digest) {
			u.legacy(t, key, "team/m", b.Digest())
		}, "does not cover the files in its archive", "does not cover the files in its archive"},
		{"cosign, an index", signature.TypeCosign, func(u *upstream, _ digest.Digest) {
			of := u.Put("team/m", "v1", indexOf(entry(b, mediatype.ModelPackManifest, nil)), mediatype.OCIIndex)
			u.attach(t, "api", "team/m", of, mediatype.Bundle, mediatype.Bundle, bundle(of))
		}, "does not cover the files in its archive", "does not cover the files in its archive"},
		{"cosign, the converted image", signature.TypeCosign, func(u *upstream, converted digest.Digest) {
			u.attach(t, "api", "team/m", converted, mediatype.Bundle, mediatype.Bundle, bundle(converted))
		}, "", "no signature was found"},
		{"oms", signature.TypeOMS, func(u *upstream, _ digest.Digest) {
			u.attach(t, "api", "team/m", b.Digest(), mediatype.Bundle, mediatype.Bundle, modelFiles)
		}, "", "differs from the signed one"},
	} {
		for served, want := range map[*converttest.Carton]string{&carton: tt.want, new(otherCarton(weights(1000))): tt.other} {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				u, f := newUpstream(t), newFacade(t, remote.Options{})
				u.Add("team/m", "v1", b)
				im, err := f.h.Convert(t.Context(), u.ref(t, "team/m", "v1"))
				if err != nil {
					t.Fatal(err)
				}
				tt.put(u, im.Manifest)
				u.Serve("/v2/team/m/blobs/"+archive.String(), served.Bytes())
				f = newFacade(t, remote.Options{})
				f.rule(t, signature.RuleOptions{Mode: signature.Enforce, Any: []signature.SignerOptions{{Type: tt.kind, Key: public}}})
				r := f.team(t, u, "v1")
				if want == "" && r.status != http.StatusOK || want != "" && (r.status != http.StatusForbidden || !strings.Contains(string(r.body), want)) {
					t.Errorf("status %d: %s, want %q", r.status, r.body, want)
				}
			})
		}
	}
}

// otherCarton returns a carton with another file than that of GoodCarton, and an archive of the same size.
func otherCarton(weights []byte) converttest.Carton {
	return converttest.GoodCarton(weights).With(converttest.CartonFile{Path: "misc/output.mp3", Data: []byte("bad")})
}

// TestLyingCarton has a registry that gives another archive than the manifest names: that is nothing for those who pull
// the same manifest from another one.
func TestLyingCarton(t *testing.T) {
	t.Parallel()
	good, evil := newUpstream(t), newUpstream(t)
	carton := converttest.GoodCarton(weights(1000))
	b := converttest.CartonArtifact(carton)
	for _, u := range []*upstream{good, evil} {
		u.Add("org/model", "v1", b)
	}
	evil.Serve("/v2/org/model/blobs/"+digest.FromBytes(carton.Bytes()).String(), otherCarton(weights(1000)).Bytes())
	f := newFacade(t, remote.Options{})
	lie := f.get(t, evil, "org/model", "v1")
	first := f.get(t, good, "org/model", "v1")
	if bytes.Equal(first.body, lie.body) {
		t.Fatal("the archive that another registry gave is used")
	}
	im, err := f.h.Store.Catalog.Image(digest.FromBytes(first.body))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(files(t, f, im), wanted(carton.Model())); diff != "" {
		t.Errorf("files (-got +want):\n%s", diff)
	}
}

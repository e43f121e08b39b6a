package registry_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/layout"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

type blobs struct{ *layout.Layout }

func (b blobs) Artifact(ctx context.Context, desc ocispec.Descriptor) (convert.Artifact, error) {
	return b.At(ctx, desc)
}

// newBlobs returns a layout with these contents.
func newBlobs(t *testing.T, contents ...[]byte) blobs {
	t.Helper()
	l, err := layout.Create(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	for _, p := range contents {
		open := func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(p)), nil }
		if err := l.Put(t.Context(), digest.FromBytes(p), int64(len(p)), open); err != nil {
			t.Fatal(err)
		}
	}
	return blobs{l}
}

func contentsOf(all ...*converttest.Built) (contents [][]byte) {
	for _, b := range all {
		contents = append(contents, b.Manifest)
		for _, p := range b.Blobs {
			contents = append(contents, p)
		}
	}
	return contents
}

func noPin(store.Image, remote.Ref) error { return nil }

// take imports a model.
func (f *facade) take(t *testing.T, ref remote.Ref, b registry.Blobs, desc ocispec.Descriptor, o registry.ImportOptions) (im store.Image, err error) {
	t.Helper()
	i, err := f.h.Import(t.Context(), ref, b, desc, o)
	if err != nil {
		return im, err
	}
	if _, err = i.Fetch(t.Context(), func(digest.Digest, []store.Progress) {}); err == nil {
		im, err = i.Commit(noPin)
	}
	return im, errors.Join(err, i.Close())
}

// TestImportPrivate gives what is imported to who can read it in its registry, and its files, if they are private, to
// nobody by another name.
func TestImportPrivate(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	b := converttest.Ollama(converttest.Files(weights(5000)), converttest.OllamaConfigNew)
	u.Add("team/model", "v1", b)
	u.SetUser("team/model", "alice:s3cr3t-value")
	f := newFacade(t, remote.Options{})
	ref := remote.Ref{Host: u.Host(), Repository: "team/model", Tag: "v1"}
	im, err := f.take(t, ref, newBlobs(t, contentsOf(b)...), entry(b, "", nil), registry.ImportOptions{Private: true})
	if err != nil || !slices.Equal(im.Refs, []string{ref.String()}) {
		t.Fatalf("got %+v, %v", im, err)
	}
	alice := basic("alice:s3cr3t-value")
	byDigest := "/v2/team/model/manifests/" + im.Manifest.String()
	if n := f.ask(t, http.MethodGet, byDigest, u.Host()).status; n == 200 {
		t.Error("a private model is given to everybody")
	}
	if n := f.ask(t, http.MethodGet, byDigest, u.Host(), alice...).status; n != 200 {
		t.Errorf("with credentials: status %d", n)
	}
	if got := f.get(t, u, "team/model", "v1", alice...); digest.FromBytes(got.body) != im.Manifest {
		t.Errorf("a pull by tag gives %s, not %s", digest.FromBytes(got.body), im.Manifest)
	}
	// One that no registry has is there by its digest, if it is for everybody.
	for i, o := range []registry.ImportOptions{{PrivateFiles: true}, {}} {
		f := newFacade(t, remote.Options{})
		own := converttest.Ollama(converttest.Files(weights(4000+i)), converttest.OllamaConfigOld)
		ref.Repository = "team/own"
		if im, err = f.take(t, ref, newBlobs(t, contentsOf(own)...), entry(own, "", nil), o); err != nil {
			t.Fatal(err)
		}
		if n := f.ask(t, http.MethodGet, "/v2/team/own/manifests/"+im.Manifest.String(), u.Host()).status; n != 200 {
			t.Errorf("own model by digest: status %d", n)
		}
		table, err := f.h.Store.Table(im.Table)
		if err != nil {
			t.Fatal(err)
		}
		other := *table // names the same files
		other.Origin.Digest = digest.FromString("of somebody else")
		p, err := other.Encode()
		if err != nil {
			t.Fatal(err)
		}
		d, err := f.h.Store.PutTable(p)
		if err != nil {
			t.Fatal(err)
		}
		thief := storetest.FromRepository("registry.example/thief", storetest.NewFetcher())
		err = f.h.Store.Hydrate(t.Context(), d, store.HydrateOptions{Sources: thief})
		if o.PrivateFiles != errdefs.IsNotFound(err) || !o.PrivateFiles && err != nil {
			t.Errorf("%+v: by another name: %v", o, err)
		}
	}
	image := *b
	image.Manifest = []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"` + string(digest.FromString("c")) + `","size":2},"layers":[]}`)
	if _, err := f.take(t, ref, newBlobs(t, image.Manifest), entry(&image, "", nil), registry.ImportOptions{}); !errors.Is(err, convert.ErrNotModel) {
		t.Errorf("an image: %v", err)
	}
}

// TestImport imports an index of models by the name of a registry that is never asked, which changes nothing for
// others, and only while it does not answer.
func TestImport(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	arm, amd := &ocispec.Platform{OS: "linux", Architecture: "arm64"}, &ocispec.Platform{OS: "linux", Architecture: "amd64"}
	one := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	two := converttest.ModelPackTarGzip(converttest.Files(weights(2000)))
	index := indexOf(entry(one, mediatype.ModelPackManifest, arm), entry(two, mediatype.ModelPackManifest, amd))
	u.Add("team/online", "v1", one)
	var offline atomic.Bool
	offline.Store(true)
	const away = "away.example"
	f := newFacade(t, remote.Options{Offline: func(host string) bool { return host == away || host == u.Host() && offline.Load() }})
	add := func(host, repository string, desc ocispec.Descriptor, b registry.Blobs, private bool) error {
		t.Helper()
		_, err := f.take(t, remote.Ref{Host: host, Repository: repository, Tag: "v1"}, b, desc, registry.ImportOptions{Private: private})
		return err
	}
	all := newBlobs(t, append(contentsOf(one, two), index)...)
	desc := ocispec.Descriptor{MediaType: mediatype.OCIIndex, Digest: digest.FromBytes(index), Size: int64(len(index))}
	if err := add(away, "team/index", desc, all, false); err != nil {
		t.Fatal(err)
	}
	got := f.ask(t, http.MethodGet, "/v2/team/index/manifests/v1", away)
	if got.status != 200 || got.header.Get("Content-Type") != mediatype.OCIIndex {
		t.Fatalf("index by tag: %d %s", got.status, got.body)
	}
	for _, d := range decode[ocispec.Index](t, got).Manifests {
		child := f.ask(t, http.MethodGet, "/v2/team/index/manifests/"+d.Digest.String(), away)
		if child.status != 200 || len(decode[ocispec.Manifest](t, child).Layers) == 0 {
			t.Errorf("model of the index: %d %s", child.status, child.body)
		}
	}
	// The digest of the registry: the answer has that of the import, for the repository that was imported.
	origin := "/manifests/" + digest.FromBytes(index).String()
	pin := f.ask(t, http.MethodGet, "/v2/team/index"+origin, away)
	if !bytes.Contains(pin.body, []byte(away+"/team/index@"+got.header.Get("Docker-Content-Digest"))) || !bytes.Contains(pin.body, []byte("does not answer")) {
		t.Errorf("origin digest: %d %s", pin.status, pin.body)
	}
	if other := f.ask(t, http.MethodGet, "/v2/team/other"+origin, away); bytes.Contains(other.body, []byte("pin the")) || other.status == 200 {
		t.Errorf("origin digest in another repository: %d %s", other.status, other.body)
	}
	if n := f.ask(t, http.MethodGet, "/v2/team/other/manifests/v1", away).status; n == 200 {
		t.Error("a name that was not imported is served")
	}
	if err := add(away, "team/private", entry(one, "", nil), all, true); err != nil {
		t.Fatal(err)
	}
	if n := f.ask(t, http.MethodGet, "/v2/team/private/manifests/v1", away).status; n == 200 {
		t.Error("a private import is served to everybody")
	}
	secret := f.ask(t, http.MethodGet, "/v2/team/private/manifests/"+digest.FromBytes(one.Manifest).String(), away)
	if secret.status == 200 || bytes.Contains(secret.body, []byte("pin the")) {
		t.Errorf("origin digest of a private import: %d %s", secret.status, secret.body)
	}
	// The registry wins as soon as it answers, also about what it does not have.
	for _, repository := range []string{"team/online", "team/gone"} {
		if err := add(u.Host(), repository, entry(two, "", nil), all, false); err != nil {
			t.Fatal(err)
		}
	}
	before := f.ask(t, http.MethodGet, "/v2/team/online/manifests/v1", u.Host())
	offline.Store(false)
	after := f.ask(t, http.MethodGet, "/v2/team/online/manifests/v1", u.Host())
	if before.status != 200 || after.status != 200 || bytes.Equal(before.body, after.body) {
		t.Errorf("import and registry: %d, %d", before.status, after.status)
	}
	if n := f.ask(t, http.MethodGet, "/v2/team/gone/manifests/v1", u.Host()).status; n != 404 {
		t.Errorf("a model that the registry does not have: %d", n)
	}
	offline.Store(true) // what it gave last is not an import
	if n := f.ask(t, http.MethodGet, "/v2/team/online/manifests/v1", u.Host()).status; n == 200 {
		t.Error("an import that the registry has replaced is served")
	}
}

// TestImportFails leaves nothing of an import that fails, and what was there before.
func TestImportFails(t *testing.T) {
	t.Parallel()
	good, bad := converttest.ModelPackRaw(converttest.Files(weights(3<<20))), converttest.ModelPackTarGzip(converttest.Files(weights(2<<20)))
	index := indexOf(entry(good, mediatype.ModelPackManifest, nil), entry(bad, mediatype.ModelPackManifest, nil))
	for p := range bad.Blobs {
		if len(bad.Blobs[p]) > 1<<20 {
			delete(bad.Blobs, p)
		}
	}
	f := newFacade(t, remote.Options{Offline: func(string) bool { return true }})
	ref := remote.Ref{Host: "away.example", Repository: "team/x", Tag: "v1"}
	for range 2 {
		i, err := f.h.Import(t.Context(), ref, newBlobs(t, append(contentsOf(good, bad), index)...), ocispec.Descriptor{Digest: digest.FromBytes(index), Size: int64(len(index))}, registry.ImportOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := i.Fetch(t.Context(), func(digest.Digest, []store.Progress) {}); err == nil {
			t.Error("a model without its weights is imported")
		}
		if err := i.Close(); err != nil {
			t.Fatal(err)
		}
		u, err := f.h.Store.Usage()
		if err != nil {
			t.Fatal(err)
		}
		if images, refs := f.h.Store.Catalog.Images(), f.h.Store.Catalog.Refs(""); len(images)+len(refs) > 0 || u.Unique+u.Partial > 0 {
			t.Errorf("left: %v, %v, %d and %d bytes", images, refs, u.Unique, u.Partial)
		}
	}
	// One that cannot be pinned leaves no image.
	i, err := f.h.Import(t.Context(), ref, newBlobs(t, contentsOf(good)...), entry(good, "", nil), registry.ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.Fetch(t.Context(), func(digest.Digest, []store.Progress) {}); err != nil {
		t.Fatal(err)
	}
	full := errors.New("full")
	if _, err := i.Commit(func(store.Image, remote.Ref) error { return full }); !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	if images := f.h.Store.Catalog.Images(); len(images) > 0 {
		t.Errorf("left: %v", images)
	}
}

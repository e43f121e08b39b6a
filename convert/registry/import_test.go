package registry_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/layout"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
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

// TestImport imports an index of models by the name of a registry that is never asked, which changes nothing for
// others, and only while it does not answer.
func TestImport(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	arm, amd := &ocispec.Platform{OS: "linux", Architecture: "arm64"}, &ocispec.Platform{OS: "linux", Architecture: "amd64"}
	one := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	two := converttest.ModelPackTarGzip(converttest.Files(weights(2000)))
	index := indexOf(entry(one, mediatype.ModelPackManifest, arm), entry(two, mediatype.ModelPackManifest, amd))
	u.push("team/online", "v1", one)
	var offline atomic.Bool
	offline.Store(true)
	const away = "away.example"
	f := newFacade(t, remote.Options{Offline: func(host string) bool { return host == away || host == u.host() && offline.Load() }})
	add := func(host, repository string, desc ocispec.Descriptor, b blobs, private bool) error {
		t.Helper()
		i, err := f.h.Import(t.Context(), remote.Ref{Host: host, Repository: repository, Tag: "v1"}, b, desc, private)
		if err != nil {
			return err
		}
		_, err = i.Fetch(t.Context(), func(digest.Digest, []store.Progress) {})
		if err == nil {
			_, err = i.Commit(t.Context(), noPin)
		}
		return errors.Join(err, i.Close())
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
		if err := add(u.host(), repository, entry(two, "", nil), all, false); err != nil {
			t.Fatal(err)
		}
	}
	before := f.ask(t, http.MethodGet, "/v2/team/online/manifests/v1", u.host())
	offline.Store(false)
	after := f.ask(t, http.MethodGet, "/v2/team/online/manifests/v1", u.host())
	if before.status != 200 || after.status != 200 || bytes.Equal(before.body, after.body) {
		t.Errorf("import and registry: %d, %d", before.status, after.status)
	}
	if n := f.ask(t, http.MethodGet, "/v2/team/gone/manifests/v1", u.host()).status; n != 404 {
		t.Errorf("a model that the registry does not have: %d", n)
	}
	offline.Store(true) // what it gave last is not an import
	if n := f.ask(t, http.MethodGet, "/v2/team/online/manifests/v1", u.host()).status; n == 200 {
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
		i, err := f.h.Import(t.Context(), ref, newBlobs(t, append(contentsOf(good, bad), index)...), ocispec.Descriptor{Digest: digest.FromBytes(index), Size: int64(len(index))}, false)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := i.Fetch(t.Context(), func(digest.Digest, []store.Progress) {}); err == nil {
			t.Error("a model without its weights is imported")
		}
		if err := i.Close(); err != nil {
			t.Fatal(err)
		}
		u, err := f.h.Store.Usage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if images, refs := f.h.Store.Images(), f.h.Store.Refs(""); len(images)+len(refs) > 0 || u.Unique+u.Partial > 0 {
			t.Errorf("left: %v, %v, %d and %d bytes", images, refs, u.Unique, u.Partial)
		}
	}
	// One that cannot be pinned leaves no image.
	i, err := f.h.Import(t.Context(), ref, newBlobs(t, contentsOf(good)...), entry(good, "", nil), false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.Fetch(t.Context(), func(digest.Digest, []store.Progress) {}); err != nil {
		t.Fatal(err)
	}
	full := errors.New("full")
	if _, err := i.Commit(t.Context(), func(store.Image, remote.Ref) error { return full }); !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	if images := f.h.Store.Images(); len(images) > 0 {
		t.Errorf("left: %v", images)
	}
}

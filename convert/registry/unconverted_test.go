package registry_test

import (
	"bytes"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestDigestOfModel asks for the digest that a model has upstream: it is answered as it is where it can be
// mounted, and otherwise refused with the digest to use.
func TestDigestOfModel(t *testing.T) {
	t.Parallel()
	files := converttest.Files(weights(1000))
	for _, tt := range []struct {
		name    string
		b       *converttest.Built
		off     bool // Handler.Origins
		user    string
		refused string // part of the reason; empty: it is answered
	}{
		{"bare", converttest.ModelPackRaw(files), false, "", ""},
		{"bare, off", converttest.ModelPackRaw(files), true, "", "origin_digests is off"},
		{"bare, private", converttest.ModelPackRaw(files), false, "alice:s3cret", ""},
		{"rejected, private", converttest.DockerAIGGUF(files), false, "alice:s3cret", "handles its layers differently"},
		{"kit", converttest.KitOps(files), false, "", ""},
		{"layered", converttest.CNAIEarly(files, converttest.EarlyConfigFull), true, "", ""},
		{"rejected", converttest.DockerAIGGUF(files), false, "", "handles its layers differently"},
		{"rejected, empty config", converttest.CNAIEarly(files, converttest.EarlyConfigEmpty), false, "", "handles its layers differently"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t)
			u.Add("org/model", "v1", tt.b)
			d := tt.b.Digest()
			u.SetUser("org/model", tt.user)
			f := newFacade(t, remote.Options{})
			f.h.Origins = !tt.off
			var header []string
			if tt.user != "" {
				header = basic(tt.user)
			}
			path := "/v2/org/model/manifests/" + d.String()
			for range 2 { // the second time from what is remembered
				head, got := f.ask(t, http.MethodHead, path, u.Host(), header...), f.ask(t, http.MethodGet, path, u.Host(), header...)
				if tt.refused == "" {
					if got.status != http.StatusOK || !bytes.Equal(got.body, tt.b.Manifest) || head.header.Get("Docker-Content-Digest") != d.String() {
						t.Errorf("got %d %s, HEAD %v", got.status, got.body, head.header)
					}
					continue
				}
				// containerd goes to the registry if HEAD is refused, and not if only GET is.
				if head.status != http.StatusOK || head.header.Get("Content-Length") != "" || head.header.Get("Docker-Content-Digest") != "" {
					t.Errorf("HEAD: got %d %v", head.status, head.header)
				}
				converted := digest.FromBytes(f.get(t, u, "org/model", "v1", header...).body)
				if is := got.header.Get("Content-Type"); !strings.HasSuffix(is, "use-instead@"+converted.String()) {
					t.Errorf("containerd before 2.3 shows %q", is)
				}
				if text := got.errorText(t); got.status != http.StatusForbidden || !strings.Contains(text, "org/model@"+converted.String()) || !strings.Contains(text, tt.refused) {
					t.Errorf("got %d %q, want 403 with %s and %q", got.status, text, converted, tt.refused)
				}
			}
		})
	}
}

// TestOrigin asks by which names a model can be read by everybody.
func TestOrigin(t *testing.T) {
	t.Parallel()
	u, other := newUpstream(t), newUpstream(t)
	b := converttest.ModelPackRaw(converttest.Files(weights(1001)))
	for _, r := range []string{"org/open", "org/closed", "org/known"} {
		u.Add(r, "v1", b)
	}
	u.SetUser("org/closed", "alice:s3cret")
	other.Add("org/image", "v1", converttest.ModelPackRaw(converttest.Files(weights(1002))))
	f := newFacade(t, remote.Options{})
	f.get(t, u, "org/known", "v1")
	f.get(t, u, "org/closed", "v1", basic("alice:s3cret")...)
	names := []string{u.Host() + "/org/closed", u.Host() + "/org/open", other.Host() + "/org/image", u.Host() + "/org/known"}
	made, err := f.h.Made(b.Digest(), "")
	if err != nil {
		t.Fatal(err)
	}
	im, public, err := f.h.Origin(t.Context(), b.Digest(), made, names, true)
	if err != nil || len(public) != 2 || public[0] != names[1] || public[1] != names[3] || im.Origin.Digest != b.Digest() {
		t.Errorf("got %+v, %v, %v, want the names %v", im, public, err, []string{names[1], names[3]})
	}
	if made, err = f.h.Made(b.Digest(), ""); err != nil {
		t.Fatal(err)
	}
	if _, public, err := f.h.Origin(t.Context(), b.Digest(), made, names, false); err != nil || len(public) != 2 {
		t.Errorf("of what is recorded: got %v, %v", public, err)
	}
	u.Count("")
	if _, public, err := f.h.Origin(t.Context(), b.Digest(), made, append(names, other.Host()+"/org/hangs"), false); err != nil || len(public) != 2 || u.Count("")+other.Count("org/hangs") > 0 {
		t.Errorf("registries are asked although a name is known: got %v, %v", public, err)
	}
	for _, s := range f.h.PublicSources(im, names...) {
		if s.CredentialsID != "" {
			t.Errorf("source %s is asked as %q", s.Name, s.CredentialsID)
		}
	}
	if _, public, err := f.h.Origin(t.Context(), b.Digest(), made, names[:1], true); err == nil || len(public) > 0 {
		t.Errorf("private name: got %v, %v", public, err)
	}
}

// TestDigestOfIndex asks for the digest that an index of models has upstream: it is answered as it is if containerd
// can mount the model in it that it picks.
func TestDigestOfIndex(t *testing.T) {
	t.Parallel()
	here, there := &ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}, &ocispec.Platform{OS: "linux", Architecture: "s390x"}
	one, two := converttest.ModelPackRaw(converttest.Files(weights(1003))), converttest.ModelPackTar(converttest.Files(weights(1004)))
	docker := converttest.DockerAIGGUF(converttest.Files(weights(1005)))
	for _, tt := range []struct {
		name    string
		entries []ocispec.Descriptor
		refused string
	}{
		{"one for this machine", []ocispec.Descriptor{entry(one, mediatype.ModelPackManifest, here), entry(two, mediatype.ModelPackManifest, there)}, ""},
		{"two for this machine", []ocispec.Descriptor{entry(one, mediatype.ModelPackManifest, here), entry(two, mediatype.ModelPackManifest, here)}, "2 entries for this machine"},
		{"none for this machine", []ocispec.Descriptor{entry(one, mediatype.ModelPackManifest, there)}, "0 entries for this machine"},
		{"no platform", []ocispec.Descriptor{entry(one, mediatype.ModelPackManifest, nil)}, "for no platform"},
		{"rejected", []ocispec.Descriptor{entry(docker, mediatype.ModelPackManifest, here)}, "handles its layers differently"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t)
			for _, b := range []*converttest.Built{one, two, docker} {
				u.Add("org/model", "", b)
			}
			index := indexOf(tt.entries...)
			d := u.Put("org/model", "v1", index, mediatype.OCIIndex)
			u.SetUser("org/model", "alice:s3cret")
			f := newFacade(t, remote.Options{})
			f.h.Origins = true
			path := "/v2/org/model/manifests/" + d.String()
			if got := f.ask(t, http.MethodGet, path, u.Host()); got.status != http.StatusUnauthorized {
				t.Errorf("without credentials: status %d", got.status)
			}
			for range 2 {
				got := f.ask(t, http.MethodGet, path, u.Host(), basic("alice:s3cret")...)
				if tt.refused != "" {
					if text := got.errorText(t); got.status != http.StatusForbidden || !strings.Contains(text, tt.refused) || !strings.Contains(text, "pin the converted image") {
						t.Errorf("got %d %q", got.status, text)
					}
					continue
				}
				if got.status != http.StatusOK || !bytes.Equal(got.body, index) || got.header.Get("Content-Type") != mediatype.OCIIndex {
					t.Errorf("got %d %s", got.status, got.body)
				}
			}
			made, err := f.h.Made(d, "")
			if err != nil || made.Origin.Digest != d || made.Read[u.Host()+"/org/model"].IsZero() {
				t.Errorf("made %+v, %v", made, err)
			}
		})
	}
}

// TestRead records by which names a caller has read an origin with credentials of its own: not those of the node, and
// not of a name that everybody can read.
func TestRead(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	b := converttest.ModelPackRaw(converttest.Files(weights(1006)))
	for _, r := range []string{"org/open", "org/closed", "org/nodes"} {
		u.Add(r, "v1", b)
	}
	u.SetUser("org/closed", "alice:s3cret")
	u.SetUser("org/nodes", "alice:s3cret")
	f := newFacade(t, remote.Options{Credentials: func(string, string) (remote.Credentials, error) {
		return remote.Credentials{Username: "alice", Secret: "s3cret"}, nil
	}})
	f.h.Origins = true
	if _, err := f.h.Convert(t.Context(), remote.Ref{Host: u.Host(), Repository: "org/nodes", Tag: "v1"}); err != nil {
		t.Fatal(err)
	}
	read := func() []string {
		t.Helper()
		made, err := f.h.Made(b.Digest(), "")
		if err != nil {
			t.Fatal(err)
		}
		return slices.Sorted(maps.Keys(made.Read))
	}
	ask := func(repository string) {
		t.Helper()
		if got := f.ask(t, http.MethodGet, "/v2/"+repository+"/manifests/"+b.Digest().String(), u.Host(), basic("alice:s3cret")...); got.status != http.StatusOK {
			t.Fatalf("%s: status %d", repository, got.status)
		}
	}
	ask("org/open")
	if got := read(); len(got) > 0 {
		t.Errorf("with credentials of the node, and without: %q", got)
	}
	ask("org/closed")
	if diff := cmp.Diff([]string{u.Host() + "/org/closed"}, read()); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	u.SetUser("org/closed", "")
	f.get(t, u, "org/closed", "v1")
	if got := read(); len(got) > 0 {
		t.Errorf("of a repository that became public: %q", got)
	}
}

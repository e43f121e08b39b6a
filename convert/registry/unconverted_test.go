package registry_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/opencontainers/go-digest"
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
		{"bare, private", converttest.ModelPackRaw(files), false, "alice:s3cret", "it is private"},
		{"kit", converttest.KitOps(files), false, "", ""},
		{"layered", converttest.CNAIEarly(files, converttest.EarlyConfigFull), true, "", ""},
		{"rejected", converttest.DockerAIGGUF(files), false, "", "handles its layers differently"},
		{"rejected, empty config", converttest.CNAIEarly(files, converttest.EarlyConfigEmpty), false, "", "handles its layers differently"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t)
			d := u.push("org/model", "v1", tt.b)
			u.setUser("org/model", tt.user)
			f := newFacade(t, remote.Options{})
			f.h.Origins = !tt.off
			var header []string
			if tt.user != "" {
				header = basic(tt.user)
			}
			path := "/v2/org/model/manifests/" + d.String()
			for range 2 { // the second time from what is remembered
				head, got := f.ask(t, http.MethodHead, path, u.host(), header...), f.ask(t, http.MethodGet, path, u.host(), header...)
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
		u.push(r, "v1", b)
	}
	u.setUser("org/closed", "alice:s3cret")
	other.push("org/image", "v1", converttest.ModelPackRaw(converttest.Files(weights(1002))))
	f := newFacade(t, remote.Options{})
	f.get(t, u, "org/known", "v1")
	f.get(t, u, "org/closed", "v1", basic("alice:s3cret")...)
	names := []string{u.host() + "/org/closed", u.host() + "/org/open", other.host() + "/org/image", u.host() + "/org/known"}
	im, public, err := f.h.Origin(t.Context(), b.Digest(), names, true)
	if err != nil || len(public) != 2 || public[0] != names[1] || public[1] != names[3] || im.Origin.Digest != b.Digest() {
		t.Errorf("got %+v, %v, %v, want the names %v", im, public, err, []string{names[1], names[3]})
	}
	if _, public, err := f.h.Origin(t.Context(), b.Digest(), names, false); err != nil || len(public) != 2 {
		t.Errorf("of what is recorded: got %v, %v", public, err)
	}
	u.count("")
	if _, public, err := f.h.Origin(t.Context(), b.Digest(), append(names, other.host()+"/org/hangs"), false); err != nil || len(public) != 2 || u.count("")+other.count("org/hangs") > 0 {
		t.Errorf("registries are asked although a name is known: got %v, %v", public, err)
	}
	for _, s := range f.h.PublicSources(im, names...) {
		if s.CredentialsID != "" {
			t.Errorf("source %s is asked as %q", s.Name, s.CredentialsID)
		}
	}
	if _, public, err := f.h.Origin(t.Context(), b.Digest(), names[:1], true); err == nil || len(public) > 0 {
		t.Errorf("private name: got %v, %v", public, err)
	}
}

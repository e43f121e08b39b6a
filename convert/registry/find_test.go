package registry_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// list sets the tags that a repository lists.
func (u *upstream) list(repository string, tags ...string) {
	p, _ := json.Marshal(map[string]any{"tags": tags})
	u.Serve("/v2/"+repository+"/tags/list", p)
}

// TestFind requests digests that another node has made: they are found by tags.
func TestFind(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	models := map[string]*converttest.Built{}
	for i, tag := range []string{"v1", "v2", "v3"} {
		models[tag] = converttest.ModelPackRaw(converttest.Files(weights(1010 + i)))
		u.Add("org/model", tag, models[tag])
	}
	old := converttest.KitOps(converttest.Files(weights(1020)))
	u.Add("org/model", "gone", old)
	other := newFacade(t, remote.Options{})
	v1 := digest.FromBytes(other.get(t, u, "org/model", "v1").body)
	v2 := digest.FromBytes(other.get(t, u, "org/model", "v2").body)
	gone := digest.FromBytes(other.get(t, u, "org/model", "gone").body)
	u.list("org/model", "v1", "v2", "v3", "sha256-"+gone.Encoded(), "not a tag")
	u.Count("")

	f := newFacade(t, remote.Options{})
	ask := func(d digest.Digest, header ...string) int {
		t.Helper()
		return f.ask(t, http.MethodGet, "/v2/org/model/manifests/"+d.String(), u.Host(), header...).status
	}
	if got := ask(v2); got != http.StatusOK {
		t.Errorf("by its tag: status %d", got)
	}
	if got := ask(v1); got != http.StatusOK {
		t.Errorf("by an older tag, which the first search did not reach: status %d", got)
	}
	u.Count("/tags/list")
	// For unknown digests a repository is searched once a minute.
	for i := range 5 {
		if got := ask(digest.FromString(string(rune('a' + i)))); got != http.StatusNotFound {
			t.Errorf("unknown digest: status %d", got)
		}
	}
	if n := u.Count("/tags/list"); n != 1 {
		t.Errorf("the tags were listed %d times", n)
	}

	// Of a repository of images few are looked at: some registries count requests.
	var tags []string
	for i := range 20 {
		tags = append(tags, fmt.Sprintf("t%d", i))
		u.Put("org/image", tags[i], []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"`+v2.String()+`","size":2},"layers":[]}`), "")
	}
	u.list("org/image", tags...)
	u.Count("")
	if got := f.ask(t, http.MethodGet, "/v2/org/image/manifests/"+gone.String(), u.Host()).status; got != http.StatusNotFound {
		t.Errorf("images: status %d", got)
	}
	if n := u.Count("/manifests/t"); n != 4 {
		t.Errorf("%d tags were read", n)
	}

	if got := ask(gone); got != http.StatusNotFound {
		t.Errorf("without a tag: status %d", got)
	}

	// In a private repository, only callers that can read the origin find it.
	u.SetUser("org/model", "alice:s3cret")
	p := newFacade(t, remote.Options{})
	path := "/v2/org/model/manifests/" + v2.String()
	if got := p.ask(t, http.MethodGet, path, u.Host()).status; got != http.StatusUnauthorized {
		t.Errorf("without credentials: status %d", got)
	}
	if got := p.ask(t, http.MethodGet, path, u.Host(), basic("alice:s3cret")...).status; got != http.StatusOK {
		t.Errorf("with credentials: status %d", got)
	}
	if got := p.ask(t, http.MethodGet, path, u.Host()).status; got != http.StatusUnauthorized {
		t.Errorf("without credentials, after others had it: status %d", got)
	}
	if _, err := f.h.Convert(t.Context(), remote.Ref{Host: u.Host(), Repository: "org/model", Digest: digest.FromString("none")}); !errdefs.IsUnauthorized(err) && !errdefs.IsNotFound(err) {
		t.Errorf("got %v", err)
	}
}

// TestFindInventedCallers: a caller with many names and passwords has the tags of a repository read no more often.
func TestFindInventedCallers(t *testing.T) {
	t.Parallel()
	u, f := newUpstream(t), newFacade(t, remote.Options{})
	var tags []string
	for i := range 64 {
		tag := fmt.Sprint("t", i)
		tags = append(tags, tag)
		u.Add("org/m", tag, converttest.ModelPackRaw([]converttest.File{{Path: "model.gguf", Data: append(weights(100), byte(i)), Mode: 0o644}}))
	}
	u.list("org/m", tags...)
	asked := 0
	ask := func(repository string, header ...string) int {
		t.Helper()
		asked++
		return f.ask(t, http.MethodGet, fmt.Sprintf("/v2/%s/manifests/%s", repository, digest.FromString(fmt.Sprint(asked))), u.Host(), header...).status
	}
	for i := range 20 {
		if got := ask("org/m", basic(fmt.Sprintf("a:%d", i))...); got != http.StatusNotFound {
			t.Fatalf("status %d", got)
		}
	}
	if n := u.Count("/manifests/t"); n != 64 {
		t.Errorf("64 tags were read %d times", n)
	}

	// Where tags can be listed and not read, there are few searches of a repository, and of all repositories of the
	// host.
	for i := range 50 {
		u.SetUser(fmt.Sprint("closed/m", i), "alice:s3cret")
		u.list(fmt.Sprint("closed/m", i), tags...)
	}
	u.Before(func(_ http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/manifests/t") {
			r.SetBasicAuth("alice", "s3cret")
		}
		return false
	})
	u.Count("")
	last := 0
	for i := range 10 {
		last = ask("closed/m0", basic(fmt.Sprintf("a:%d", i))...)
	}
	if n := u.Count("/tags/list"); n != 4 || last != http.StatusForbidden {
		t.Errorf("the tags of one repository were listed %d times, status %d; want 4 times, %d", n, last, http.StatusForbidden)
	}
	for i := range 50 {
		ask(fmt.Sprint("closed/m", i), basic("a:b")...)
	}
	if n := u.Count("/tags/list"); n != 32-1-4 {
		t.Errorf("the tags of repositories were listed %d times, want 27", n)
	}
}

// TestFindOfOperator: what strangers have searched does not stop the operator.
func TestFindOfOperator(t *testing.T) {
	t.Parallel()
	u, f := newUpstream(t), newFacade(t, remote.Options{})
	u.SetUser("closed/m", "alice:s3cret")
	u.Before(func(_ http.ResponseWriter, r *http.Request) bool { r.SetBasicAuth("alice", "s3cret"); return false })
	list := func(of string) int {
		u.Count("")
		d := digest.FromString(of)
		if of == "the operator" {
			_, _ = f.h.Convert(t.Context(), u.ref(t, "closed/m", d.String()))
		} else {
			f.ask(t, http.MethodGet, "/v2/closed/m/manifests/"+d.String(), u.Host(), basic("a:"+of)...)
		}
		return u.Count("/tags/list")
	}
	for i := range 10 {
		list(fmt.Sprint("stranger", i))
	}
	if n := list("the operator"); n == 0 {
		t.Error("the tags are not listed for the operator")
	}
}

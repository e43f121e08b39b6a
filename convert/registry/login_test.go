package registry_test

import (
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/opencontainers/go-digest"
)

// TestLogin: a password of the credential helper stands for the credentials of each repository in requests for that
// repository alone, for a short time, and no registry ever gets it.
func TestLogin(t *testing.T) {
	u, other := newUpstream(t), newUpstream(t)
	for _, u := range []*upstream{u, other} {
		u.Add("org/model", "v1", converttest.ModelPackRaw(converttest.Files(weights(1007))))
		u.Add("org/two", "v1", converttest.ModelPackRaw(converttest.Files(weights(1008))))
		u.SetUser("org/two", "bob:b0b")
	}
	u.SetUser("org/model", "alice:s3cret")
	other.SetUser("org/model", "alice:an0ther")
	f := newFacade(t, remote.Options{})
	const path, two = "/v2/org/model/manifests/v1", "/v2/org/two/manifests/v1"
	for _, u := range []*upstream{u, other} {
		f.askOnce(t, http.MethodGet, path, u.Host())
	}
	names := []string{other.Host() + "/org/model", u.Host() + "/org/model"}
	if got := f.h.Asked(); !slices.Equal(got, names) {
		t.Errorf("asked for %q, want %q", got, names)
	}
	password := f.h.Login(map[string]remote.Credentials{names[0]: {Username: "alice", Secret: "an0ther"}, names[1]: {Username: "alice", Secret: "s3cret"}})
	if strings.Contains(password, "s3cret") || strings.Contains(password, "alice") {
		t.Errorf("password %q", password)
	}
	// ways are the ways in which containerd gives a password.
	ways := func(f *facade, path, host, password string) (replies []reply) {
		t.Helper()
		for _, form := range []url.Values{
			{"grant_type": {"password"}, "username": {"ballast"}, "password": {password}},
			{"grant_type": {"refresh_token"}, "refresh_token": {password}},
		} {
			token := f.token(t, f.askOnce(t, http.MethodGet, path, host), form)
			replies = append(replies, f.askOnce(t, http.MethodGet, path, host, "Authorization", "Bearer "+token))
		}
		r, err := http.NewRequest(http.MethodGet, "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.SetBasicAuth("ballast", password)
		return append(replies, f.askOnce(t, http.MethodGet, path, host, "Authorization", r.Header.Get("Authorization")))
	}
	for _, u := range []*upstream{u, other} {
		for i, got := range ways(f, path, u.Host(), password) {
			if got.status != http.StatusOK {
				t.Errorf("way %d: status %d: %s", i, got.status, got.body)
			}
		}
		for i, got := range ways(f, two, u.Host(), password) {
			if got.status != http.StatusUnauthorized {
				t.Errorf("way %d: another repository: status %d", i, got.status)
			}
		}
		if l := f.h.Secrets.Of(u.Host() + "/org/model"); len(l) != 1 || strings.HasPrefix(l[0].Secret, "ballast") {
			t.Errorf("kept: %d secrets", len(l))
		}
	}
	stranger := newFacade(t, remote.Options{})
	undo := registry.SetTokenTime(-time.Second)
	expired := f.h.Login(map[string]remote.Credentials{names[1]: {Username: "alice", Secret: "s3cret"}})
	undo()
	for name, tt := range map[string]struct {
		f        *facade
		password string
	}{
		"expired": {f, expired}, "changed": {f, password[:len(password)-4] + "AAAA"}, "invented": {f, "ballast-login.x"}, "of another process": {stranger, password},
	} {
		for i, got := range ways(tt.f, path, u.Host(), tt.password) {
			if got.status != http.StatusUnauthorized || !strings.Contains(string(got.body), "not valid any more") {
				t.Errorf("%s, way %d: status %d: %s", name, i, got.status, got.body)
			}
		}
	}
	if s := f.logs.String() + stranger.logs.String(); strings.Contains(s, "s3cret") || strings.Contains(s, password) {
		t.Error("the log has credentials")
	}
}

// TestLoginOfResolver pulls with the client of containerd, which gets the password of a credential helper for the
// address of the facade, and another one when that has expired.
func TestLoginOfResolver(t *testing.T) {
	u := newUpstream(t)
	u.Add("org/model", "v1", converttest.ModelPackRaw(converttest.Files(weights(1007))))
	u.SetUser("org/model", "alice:s3cret")
	f := newFacade(t, remote.Options{})
	var calls atomic.Int32
	r := docker.NewResolver(docker.ResolverOptions{Hosts: func(string) ([]docker.RegistryHost, error) {
		creds := docker.WithAuthCreds(func(string) (string, string, error) {
			calls.Add(1)
			of := map[string]remote.Credentials{}
			for _, name := range f.h.Asked() {
				of[name] = remote.Credentials{Username: "alice", Secret: "s3cret"}
			}
			return "ballast", f.h.Login(of), nil
		})
		return []docker.RegistryHost{{
			Client: f.Client(), Authorizer: docker.NewDockerAuthorizer(creds), Host: strings.TrimPrefix(f.URL, "http://"),
			Scheme: "http", Path: "/v2", Capabilities: docker.HostCapabilityPull | docker.HostCapabilityResolve,
		}}, nil
	}})
	const life = time.Second
	undo := registry.SetTokenTime(life)
	name, d, err := r.Resolve(t.Context(), u.Host()+"/org/model:v1")
	undo()
	if err != nil {
		t.Fatal(err)
	}
	before := calls.Load()
	time.Sleep(life)
	fetcher, err := r.Fetcher(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	rc, err := fetcher.Fetch(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	if p, err := io.ReadAll(rc); err != nil || digest.FromBytes(p) != d.Digest {
		t.Errorf("%d bytes: %v", len(p), err)
	}
	if got := calls.Load() - before; got == 0 {
		t.Error("nobody was asked for another password")
	}
}

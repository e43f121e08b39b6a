package remote_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
)

func plainRequest(t *testing.T, method, address string, header ...string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return req
}

// TestDo checks that redirects are followed without credentials, and that the body is not decoded.
func TestDo(t *testing.T) {
	t.Parallel()
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	z.Write([]byte("content"))
	z.Close()
	u := newUpstream(t)
	u.Before(func(w http.ResponseWriter, r *http.Request) bool {
		switch r.URL.Path {
		case "/a":
			http.SetCookie(w, &http.Cookie{Name: "c", Value: "v"})
			w.Header().Set("Location", "/b?signed=1")
			w.WriteHeader(302)
		case "/b":
			w.Header().Set("Content-Encoding", "gzip")
			w.Write(zipped.Bytes())
		case "/loop":
			w.Header().Set("Location", "/loop")
			w.WriteHeader(307)
		default:
			w.WriteHeader(418)
		}
		return true
	})
	c := newClient(t, remote.Options{NamedURLs: []string{u.URL + "/{repository}"}, Credentials: func(string, string) (remote.Credentials, error) {
		return remote.Credentials{Username: "alice", Secret: secret}, nil
	}})
	resp, err := c.Do(plainRequest(t, "GET", u.URL+"/a", "Accept-Encoding", "gzip", "Range", "bytes=0-9", "Authorization", "Bearer x", "Cookie", "c=x"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || !bytes.Equal(p, zipped.Bytes()) || resp.Request.URL.Path != "/b" {
		t.Errorf("%q from %s, %v", p, resp.Request.URL.Path, err)
	}
	for _, s := range u.Requests() {
		if s.Header.Get("Authorization") != "" || s.Header.Get("Cookie") != "" {
			t.Errorf("%s got credentials", s.URL.Path)
		}
		if s.Header.Get("Accept-Encoding") != "gzip" || s.Header.Get("Range") != "bytes=0-9" {
			t.Errorf("%s got headers %v", s.URL.Path, s.Header)
		}
	}
	head, err := c.Do(plainRequest(t, "HEAD", u.URL+"/c"))
	if err != nil || head.StatusCode != 418 {
		t.Fatalf("%v, %v; want status 418", head, err)
	}
	head.Body.Close()
	_, err = c.Do(plainRequest(t, "GET", u.URL+"/loop"))
	mustRefuse(t, err, errdefs.IsFailedPrecondition, "more than 10 redirects")
	_, err = c.Do(plainRequest(t, "POST", u.URL+"/a"))
	mustRefuse(t, err, errdefs.IsInvalidArgument, "POST")
}

// TestDoRefuses checks that hostile URLs are refused.
func TestDoRefuses(t *testing.T) {
	t.Parallel()
	inside := newUpstream(t)
	front := newUpstream(t)
	front.Before(func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Location", r.URL.Query().Get("to"))
		w.WriteHeader(302)
		return true
	})
	c := newClient(t, remote.Options{NamedURLs: []string{front.URL}, Facade: []string{"127.0.0.1:5757"}})
	bad := []string{
		inside.URL + "/x",
		"http://example.com/x",
		"https://127.0.0.1:1/x",
		"https://localhost/x",
		"https://10.0.0.1/x",
		"https://169.254.169.254/latest/meta-data",
		"https://[::1]/x",
		"https://metadata.internal/x",
		"https://u:p@example.com/x",
		"ftp://example.com/x",
		"file:///etc/passwd",
		"http://127.0.0.1:5757/v2/",
	}
	for _, s := range bad {
		_, err := c.Do(plainRequest(t, "GET", s))
		mustRefuse(t, err, errdefs.IsPermissionDenied, "")
		_, err = c.Do(plainRequest(t, "GET", front.URL+"/?to="+s))
		mustRefuse(t, err, errdefs.IsPermissionDenied, "")
	}
	if n := len(inside.Requests()); n != 0 {
		t.Errorf("the internal host got %d requests", n)
	}
	// An address or a network allows no plain HTTP. The error names the entry that does.
	named := newClient(t, remote.Options{AllowHosts: []string{"127.0.0.1", "127.0.0.0/8"}})
	_, err := named.Do(plainRequest(t, "GET", inside.URL+"/x"))
	mustRefuse(t, err, errdefs.IsPermissionDenied, fmt.Sprintf("list %q in upstream.allow_hosts", inside.Host()))
	allowed := newClient(t, remote.Options{AllowHosts: []string{inside.Host()}})
	resp, err := allowed.Do(plainRequest(t, "GET", inside.URL+"/x"))
	if err != nil {
		t.Fatalf("an allowed host: %v", err)
	}
	resp.Body.Close()
	if _, err := remote.New(remote.Options{NamedURLs: []string{"models.example/x"}}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("NamedURLs without scheme: %v", err)
	}
}

// TestDoCertificate checks that a server without a trusted certificate is refused.
func TestDoCertificate(t *testing.T) {
	t.Parallel()
	u := newTLSUpstream(t)
	c := newClient(t, remote.Options{NamedURLs: []string{u.URL}})
	if _, err := c.Do(plainRequest(t, "GET", u.URL+"/x")); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a server with an unknown certificate: %v", err)
	}
}

// TestDoStall checks that a body that stalls ends with errdefs.ErrUnavailable.
func TestDoStall(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.Before(func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Length", "100")
		w.Write([]byte("some"))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return true
	})
	c := newClient(t, remote.Options{NamedURLs: []string{u.URL}, Stall: stall})
	resp, err := c.Do(plainRequest(t, "GET", u.URL+"/x"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadAll(resp.Body); !errdefs.IsUnavailable(err) {
		t.Errorf("error is %v", err)
	}
}

// TestReadSmall reads a blob of unknown size.
func TestReadSmall(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	d := u.putBlob([]byte("a manifest"))
	a := u.repository(t, remote.Options{}, nil).Artifact(remote.Manifest{})
	if p, err := a.ReadSmall(t.Context(), d, 10); err != nil || string(p) != "a manifest" {
		t.Errorf("%q, %v", p, err)
	}
	_, err := a.ReadSmall(t.Context(), d, 9)
	mustRefuse(t, err, errdefs.IsInvalidArgument, "more than 9 bytes")
	u.Serve("/v2/org/model/blobs/"+d.String(), []byte("other text"))
	if p, err := a.ReadSmall(t.Context(), d, 10); err == nil || !strings.Contains(err.Error(), "digest") {
		t.Errorf("wrong bytes: %q, %v", p, err)
	}
}

// askOthers names n other hosts to c, of which it keeps no more than its limit.
func askOthers(t *testing.T, c *remote.Client, n int) {
	t.Helper()
	for i := range n {
		ref, err := remote.NewRef(fmt.Sprintf("h%d.example", i), "org/model", "latest")
		if err != nil {
			t.Fatal(err)
		}
		repositoryOf(t, c, ref, nil)
	}
	if n := remote.Hosts(c); n > remote.MaxHosts {
		t.Errorf("%d hosts in the cache, want at most %d", n, remote.MaxHosts)
	}
}

// TestHostCacheIsLimited checks that the cache of hosts has a limit, and that a host that was dropped
// works again.
func TestHostCacheIsLimited(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.putManifest("latest", manifestBytes("x"))
	c := newClient(t, remote.Options{})
	first := repositoryOf(t, c, u.ref(t, "latest"), nil)
	askOthers(t, c, 2*remote.MaxHosts)
	for name, r := range map[string]*remote.Repository{"the old one": first, "a new one": repositoryOf(t, c, u.ref(t, "latest"), nil)} {
		if _, err := r.Manifest(t.Context(), "latest"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	before := remote.Hosts(c)
	for _, host := range []string{"", "..", "a b", "x.example:0", "x.example:70000", "x.example:", "x/y", "[::1", strings.Repeat("a.", 200) + "b"} {
		if _, err := c.Repository(remote.Ref{Host: host, Repository: "org/model"}, nil); !errdefs.IsInvalidArgument(err) {
			t.Errorf("host %.30q: %v", host, err)
		}
	}
	if n := remote.Hosts(c); n != before {
		t.Errorf("%d hosts in the cache after invalid names, want %d", n, before)
	}
}

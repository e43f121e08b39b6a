package huggingface

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// FuzzSnapshot reads arbitrary manifests, and generated ones.
func FuzzSnapshot(f *testing.F) {
	s, err := newSnapshot("a/b", strings.Repeat("0", 40), []file{{path: "w.gguf", size: 4, digest: digest.FromString("GGUF")}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(s.manifest)
	f.Add([]byte(`{"schemaVersion":2,"config":{"data":"e30="}}`))
	f.Fuzz(func(t *testing.T, p []byte) {
		s, err := parseSnapshot("a/b", p)
		if err != nil {
			return
		}
		if !commitRE.MatchString(s.commit) {
			t.Errorf("commit %q", s.commit)
		}
		for d, name := range s.paths {
			if u := (&call{hub: &Hub{endpoint: mustEndpoint(t)}}).file("a/b", s.commit, name); !strings.HasPrefix(u.EscapedPath(), "/a/b/resolve/"+s.commit+"/") {
				t.Errorf("%s: %q is at %s", d, name, u)
			}
		}
	})
}

func mustEndpoint(t *testing.T) *url.URL {
	h, err := New(DefaultEndpoint)
	if err != nil {
		t.Fatal(err)
	}
	return h.endpoint
}

// FuzzNames parses names from a Hub.
func FuzzNames(f *testing.F) {
	f.Add("m-UD-Q4_K_XL-00001-of-00002.gguf", `<https://h/x>; rel="next"`)
	f.Add("BF16/m.gguf", `</x>; rel=prev, </y>; rel=next`)
	f.Fuzz(func(t *testing.T, name, link string) {
		if q := quantisationOf(name); q != "" && !isQuantisation(q) {
			t.Errorf("%q has the quantisation %q", name, q)
		}
		if next := nextLink([]string{link}); strings.ContainsAny(next, "<>") {
			t.Errorf("%q leads to %q", link, next)
		}
	})
}

// TestLimits remembers a limited number of manifests, the last ones.
func TestLimits(t *testing.T) {
	h, err := New(DefaultEndpoint)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 * maxSnapshots {
		h.keep(&snapshot{repo: "a/b", selection: fmt.Sprint(i), digest: digest.FromString(fmt.Sprint(i))})
	}
	if n := len(h.snapshots); n != maxSnapshots || h.snapshots[n-1].selection != fmt.Sprint(3*maxSnapshots-1) {
		t.Errorf("%d, the last is %s", n, h.snapshots[n-1].selection)
	}
	for i := range 10 {
		h.keep(&snapshot{repo: "a/b", selection: fmt.Sprint(i), digest: digest.FromString(fmt.Sprint("large", i)), manifest: make([]byte, maxKept/4)})
	}
	if n := len(h.snapshots); n != 4 {
		t.Errorf("%d of a quarter of all bytes each", n)
	}
}

// TestNoDowngrade: a tree, whose digests nothing else confirms, does not come over http because an https host says so.
func TestNoDowngrade(t *testing.T) {
	c := &call{from: &http.Request{Header: http.Header{}}, ways: remote.Ways{Outside: http.NewFileTransport(http.Dir(t.TempDir()))}}
	for to, want := range map[string]error{"http://h.example/x": errdefs.ErrPermissionDenied, "https://a:b@h.example/x": errdefs.ErrUnavailable, "": errdefs.ErrUnavailable} {
		from := &http.Request{URL: mustEndpoint(t)}
		resp := &http.Response{StatusCode: 302, Header: http.Header{"Location": {to}}, Body: http.NoBody, Request: from}
		if _, err := c.follow(t.Context(), "", resp, nil); !errors.Is(err, want) || strings.Contains(err.Error(), "answered") {
			t.Errorf("%q: %v", to, err)
		}
	}
}

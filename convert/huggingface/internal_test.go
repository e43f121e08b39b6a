package huggingface

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

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
	f.Add("m (ud q4_k_m).gguf", `"api";r=12;t=210, "resolvers";r=0;t=40`)
	f.Fuzz(func(t *testing.T, name, link string) {
		if d := pause(http.Header{"Ratelimit": {link}, "Retry-After": {name}}, time.Time{}); d < 0 || d > maxPause {
			t.Errorf("%q asks for a pause of %v", link, d)
		}
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

// TestPause reads what responses say about limits.
func TestPause(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, tt := range []struct {
		header http.Header
		want   time.Duration
	}{
		{http.Header{"Ratelimit": {`"resolvers";r=0;t=40`}, "Ratelimit-Policy": {`"fixed window";"resolvers";q=3000;w=300`}}, 40 * time.Second},
		{http.Header{"Ratelimit": {`"api";r=12;t=210, "resolvers"; r=0; t=40`}}, 40 * time.Second},
		{http.Header{"Ratelimit": {`"api";r=12;t=210`, `"resolvers";t=7;r=0;pk=:x=:`}}, 7 * time.Second},
		{http.Header{"Ratelimit": {`"api";r=0;t=0`}}, time.Second},
		{http.Header{"Ratelimit": {`"api";r=0`}, "Ratelimit-Policy": {`"fixed window";"api";q=500;w=300`}}, 300 * time.Second},
		{http.Header{"Retry-After": {"3"}, "Ratelimit": {`"api";r=0;t=40`}}, 3 * time.Second},
		{http.Header{"Retry-After": {"0"}}, time.Second},
		{http.Header{"Retry-After": {now.Add(90 * time.Second).Format(http.TimeFormat)}}, 90 * time.Second},
		{http.Header{"Retry-After": {"2147483647"}}, maxPause},
		{http.Header{"Ratelimit": {`"api";r=0;t=99999999999999999999`}}, 0},
		{http.Header{"Ratelimit": {`"api";r=12;t=210`}}, 0},
		{http.Header{"Ratelimit": {`;;=,,r=0;t`}, "Retry-After": {"soon"}}, 0},
		{nil, 0},
	} {
		if got := pause(tt.header, now); got != tt.want {
			t.Errorf("%v: got %v, want %v", tt.header, got, tt.want)
		}
	}
}

// TestDigestsKept keeps a limited number of digests, the last ones.
func TestDigestsKept(t *testing.T) {
	var d digests
	for i := range 5 * maxDigests / 2 {
		d.put(blob{repo: "a/b", oid: fmt.Sprint(i)}, digest.FromString(fmt.Sprint(i)))
	}
	if n := len(d.recent) + len(d.old); n > 2*maxDigests {
		t.Errorf("%d digests", n)
	}
	for i := 3 * maxDigests / 2; i < 5*maxDigests/2; i++ {
		if got := d.get(blob{repo: "a/b", oid: fmt.Sprint(i)}); got != digest.FromString(fmt.Sprint(i)) {
			t.Fatalf("%d: %q", i, got)
		}
	}
	if got := d.get(blob{repo: "a/b", oid: "0"}); got != "" {
		t.Errorf("the first: %q", got)
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

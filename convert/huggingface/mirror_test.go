package huggingface_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/huggingface"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

const mirrorToken = "hf_secret"

// A mirror is a mirror of a Hub below a path.
type mirror struct {
	*httptest.Server
	hub    *converttest.Hub
	astray atomic.Int64 // requests at the Hub itself that have a token and do not come from the mirror
}

// newMirror starts a mirror that answers as serve says; serve can let next answer with the answer of the Hub.
func newMirror(t *testing.T, h *converttest.Hub, serve func(w http.ResponseWriter, r *http.Request, next http.Handler)) *mirror {
	m := &mirror{hub: h}
	hub, err := url.Parse(h.URL)
	if err != nil {
		t.Fatal(err)
	}
	answer := h.Config.Handler
	h.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" && r.Header.Get("From") != "mirror" {
			m.astray.Add(1)
		}
		answer.ServeHTTP(w, r)
	})
	next := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(hub)
		r.Out.Header.Set("From", "mirror")
	}}
	m.Server = httptest.NewServer(http.StripPrefix("/hub", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { serve(w, r, next) })))
	t.Cleanup(m.Close)
	return m
}

// open opens a name with a token of the node.
func (m *mirror) open(t *testing.T, token, name string) (*resolve.Source, error) {
	t.Helper()
	hub, err := huggingface.New(m.URL + "/hub")
	if err != nil {
		t.Fatal(err)
	}
	o := remote.Options{
		Dialects: map[string]remote.Dialect{"hf.co": hub}, Shared: remote.AnyHost,
		AllowHosts:  []string{strings.TrimPrefix(m.hub.CDN.URL, "http://"), strings.TrimPrefix(m.hub.URL, "http://")},
		Credentials: func(string, string) (remote.Credentials, error) { return huggingface.Credentials(token), nil },
	}
	client, err := remote.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	src, err := (&resolve.Resolver{Upstream: client}).Open(t.Context(), name)
	if err == nil {
		t.Cleanup(func() { src.Close() })
		if l := m.hub.Leaked(); len(l) > 0 || m.astray.Load() > 0 {
			t.Errorf("%s: the token went to another host: %q, %d", name, l, m.astray.Load())
		}
	}
	return src, err
}

// TestPagesElsewhere: the next page of a tree is requested from the endpoint, also if a mirror repeats the address of the
// Hub (padeoe/hf-mirror-site#65).
func TestPagesElsewhere(t *testing.T) {
	t.Parallel()
	h := converttest.NewHub(t)
	h.Push("Org/Model", "main", repository())
	h.Protect("Org/Model", mirrorToken)
	m := newMirror(t, h, func(w http.ResponseWriter, r *http.Request, next http.Handler) { next.ServeHTTP(w, r) })
	src, err := m.open(t, mirrorToken, "hf:Org/Model")
	if err != nil {
		t.Fatalf("%v; %d requests with the token at the Hub", err, m.astray.Load())
	}
	if diff := cmp.Diff(text(repository(), ".gitattributes"), read(t, src)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// TestMirror: a mirror may redirect within itself, and everything elsewhere, where no token follows.
func TestMirror(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			h := converttest.NewHub(t)
			h.Push("Org/Model", "main", repository())
			h.Push("Org/Private", "main", repository())
			h.Protect("Org/Private", mirrorToken)
			h.Push("Org/Gated", "main", repository())
			h.Gate("Org/Gated", mirrorToken)
			within := newMirror(t, h, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if rest, moved := strings.CutPrefix(r.URL.EscapedPath(), "/cache"); moved {
					http.StripPrefix("/cache", next).ServeHTTP(w, r)
				} else {
					http.Redirect(w, r, "/hub/cache"+rest+"?"+r.URL.RawQuery, status)
				}
			})
			elsewhere := newMirror(t, h, func(w http.ResponseWriter, r *http.Request, _ http.Handler) { // jundot/omlx#1339
				http.Redirect(w, r, h.URL+r.URL.EscapedPath()+"?"+r.URL.RawQuery, status)
			})
			src, err := within.open(t, mirrorToken, "hf:Org/Private")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(text(repository(), ".gitattributes"), read(t, src)); diff != "" {
				t.Errorf("redirects within the mirror (-want +got):\n%s", diff)
			}
			if src, err = elsewhere.open(t, mirrorToken, "hf:Org/Model"); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(text(repository(), ".gitattributes"), read(t, src)); diff != "" {
				t.Errorf("redirects elsewhere (-want +got):\n%s", diff)
			}
			for _, name := range []string{"hf:Org/Private", "hf:Org/Gated"} {
				if _, err := elsewhere.open(t, mirrorToken, name); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "gets no token") {
					t.Errorf("%s elsewhere: %v", name, err)
				}
			}
		})
	}
}

// TestMirrorOfStrangers: that a mirror redirects a caller without a token is no permission.
func TestMirrorOfStrangers(t *testing.T) {
	t.Parallel()
	h := converttest.NewHub(t)
	h.Push("Org/Gated", "main", repository())
	h.Gate("Org/Gated", mirrorToken)
	m := newMirror(t, h, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Header.Get("Authorization") == "" && strings.HasSuffix(r.URL.Path, "/sub/copy.bin") {
			http.Redirect(w, r, h.URL+r.URL.EscapedPath(), http.StatusFound)
			return
		}
		if r.Header.Get("Authorization") == "" { // it gives the small files to everybody
			r.Header.Set("Authorization", "Bearer "+mirrorToken)
		}
		next.ServeHTTP(w, r)
	})
	if _, err := m.open(t, mirrorToken, "hf:Org/Gated"); err != nil {
		t.Error(err)
	}
	if _, err := m.open(t, "", "hf:Org/Gated"); !errdefs.IsUnauthorized(err) {
		t.Errorf("without a token: %v", err)
	}
}

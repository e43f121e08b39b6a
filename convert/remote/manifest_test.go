package remote_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

func TestManifest(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	p := manifestBytes("x")
	d := digest.FromBytes(p)
	u.putManifest("latest", p)
	r := u.repository(t, remote.Options{}, nil)
	want := remote.Manifest{Bytes: p, Digest: d, ContentType: "text/plain"}
	for _, object := range []string{"latest", d.String()} {
		got, err := r.Manifest(t.Context(), object)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(got, want); diff != "" {
			t.Errorf("Manifest(%s) (-got +want):\n%s", object, diff)
		}
	}
	for _, s := range u.Requests() {
		if s.Method != http.MethodGet || !strings.HasPrefix(s.URL.Path, "/v2/org/model/manifests/") {
			t.Errorf("got request %s %s", s.Method, s.URL.Path)
		}
		if got, want := s.Header.Get("Via"), remote.Via; got != want {
			t.Errorf("Via is %q, want %q", got, want)
		}
		if got := s.Header.Get("User-Agent"); got != "ballast" {
			t.Errorf("User-Agent is %q", got)
		}
	}
	if n := len(u.Requests()); n != 2 {
		t.Errorf("%d requests for two manifests", n)
	}
	if _, err := r.Manifest(t.Context(), "none"); !errdefs.IsNotFound(err) {
		t.Errorf("a missing tag: %v", err)
	}
	if _, err := r.Manifest(t.Context(), "../x"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("an invalid tag: %v", err)
	}
}

// TestManifestEncoded reads a manifest from a proxy that compresses answers although the request excludes it.
func TestManifestEncoded(t *testing.T) {
	t.Parallel()
	p := manifestBytes(strings.Repeat("x", 1<<20))
	u := newUpstream(t)
	u.Before(func(w http.ResponseWriter, r *http.Request) bool {
		if got := r.Header.Get("Accept-Encoding"); got != "identity" {
			t.Errorf("Accept-Encoding is %q", got)
		}
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		z.Write(p)
		z.Close()
		return true
	})
	for _, object := range []string{"latest", digest.FromBytes(p).String()} {
		got, err := u.repository(t, remote.Options{}, nil).Manifest(t.Context(), object)
		if err != nil || !bytes.Equal(got.Bytes, p) {
			t.Errorf("%s: %d bytes, %v", object, len(got.Bytes), err)
		}
	}
}

// TestUnchanged: what was read before and has not changed costs a HEAD, which registries do not count, and only the
// caller whose HEAD succeeds gets it. A host whose HEAD says nothing is not asked by HEAD again.
func TestUnchanged(t *testing.T) {
	t.Parallel()
	a, b := manifestBytes("a"), manifestBytes("b")
	for name, c := range map[string]struct {
		// head answers a HEAD of the manifest p, after the first GET; nil means as it should.
		head func(w http.ResponseWriter, p []byte)
		want [4]string // the methods of reading a again, twice, then b, then b again
	}{
		"HEAD":           {nil, [4]string{"HEAD", "HEAD", "HEAD GET", "HEAD"}},
		"not allowed":    {func(w http.ResponseWriter, p []byte) { w.WriteHeader(http.StatusMethodNotAllowed) }, [4]string{"HEAD GET", "GET", "GET", "GET"}},
		"not found":      {func(w http.ResponseWriter, p []byte) { w.WriteHeader(http.StatusNotFound) }, [4]string{"HEAD GET", "GET", "GET", "GET"}},
		"without digest": {func(w http.ResponseWriter, p []byte) {}, [4]string{"HEAD GET", "GET", "GET", "GET"}},
		"another digest": {func(w http.ResponseWriter, p []byte) { setDigest(w, []byte("x")) }, [4]string{"HEAD GET", "HEAD GET", "HEAD GET", "HEAD GET"}},
		"limit":          {func(w http.ResponseWriter, p []byte) { w.WriteHeader(http.StatusTooManyRequests) }, [4]string{"HEAD GET", "HEAD GET", "HEAD GET", "HEAD GET"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t)
			u.putManifest("latest", a)
			u.Before(func(w http.ResponseWriter, r *http.Request) bool {
				p := u.Manifest("org/model", "latest")
				if r.Method == http.MethodHead && c.head != nil {
					c.head(w, p)
					return true
				}
				setDigest(w, p)
				return false
			})
			r := u.repository(t, remote.Options{}, nil)
			asked := 0
			read := func(want []byte) string {
				t.Helper()
				m, err := r.Manifest(t.Context(), "latest")
				if err != nil || string(m.Bytes) != string(want) || m.Digest != digest.FromBytes(want) || m.ContentType != "text/plain" {
					t.Fatalf("got %+v, %v", m, err)
				}
				var methods []string
				for _, s := range u.Requests()[asked:] {
					methods = append(methods, s.Method)
				}
				asked += len(methods)
				return strings.Join(methods, " ")
			}
			if got := read(a); got != "GET" {
				t.Errorf("first: %s", got)
			}
			got := [4]string{0: read(a), 1: read(a)}
			u.putManifest("latest", b)
			got[2], got[3] = read(b), read(b)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}

func setDigest(w http.ResponseWriter, p []byte) {
	w.Header().Set("Docker-Content-Digest", digest.FromBytes(p).String())
}

// TestUnchangedIsForEach: what one caller has read, another one gets only from the registry.
func TestUnchangedIsForEach(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	p := manifestBytes("a")
	d := digest.FromBytes(p)
	u.putManifest("latest", p)
	u.Before(func(w http.ResponseWriter, r *http.Request) bool {
		if user, _, _ := r.BasicAuth(); user != "alice" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		setDigest(w, p)
		return false
	})
	c := newClient(t, remote.Options{})
	for _, object := range []string{"latest", d.String()} {
		ref := u.ref(t, object)
		for _, as := range []*remote.Credentials{{Username: "alice", Secret: "a"}, nil, {Username: "bob", Secret: "b"}, {Username: "alice", Secret: "a"}} {
			_, err := repositoryOf(t, c, ref, as).Manifest(t.Context(), object)
			if allowed := as != nil && as.Username == "alice"; allowed != (err == nil) || !allowed && !errdefs.IsUnauthorized(err) {
				t.Errorf("%s as %v: %v", object, as, err)
			}
		}
	}
	for _, s := range u.Requests()[2:] {
		if s.Method == http.MethodGet && strings.HasPrefix(s.Header.Get("Authorization"), "Basic YWxpY2U6") && s.URL.Path == "/v2/org/model/manifests/latest" {
			t.Errorf("GET by the caller that has read it")
		}
	}
}

// TestManifestOllama reads a manifest from a registry that behaves as registry.ollama.ai does: without
// HEAD, /v2/ and digests, with text/plain, and with 412 for a client that is too old.
func TestManifestOllama(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	p := manifestBytes("x")
	u.putManifest("2b", p)
	u.Before(func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.Method != http.MethodGet:
			w.WriteHeader(http.StatusMethodNotAllowed)
		case strings.Contains(r.URL.Path, "sha256:"):
			w.WriteHeader(http.StatusMethodNotAllowed)
		case strings.HasSuffix(r.URL.Path, "/new"):
			w.WriteHeader(http.StatusPreconditionFailed)
			io.WriteString(w, `{"errors":[{"code":"X","message":"requires a newer version\nof Ollama"}]}`)
		default:
			return false
		}
		return true
	})
	r := u.repository(t, remote.Options{Manners: map[string]remote.Manner{u.Host(): {UserAgent: "ollama/0.40.0", Accept: mediatype.OllamaManifestList + ", " + mediatype.DockerManifest}}}, nil)

	ref := u.ref(t, "2b")
	ref.Digest = digest.FromBytes(p)
	got, err := r.Resolve(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	if got.Digest != ref.Digest {
		t.Errorf("digest is %s, want %s", got.Digest, ref.Digest)
	}
	ref.Digest = digest.FromString("another")
	_, err = r.Resolve(t.Context(), ref)
	if _, ok := errors.AsType[*verify.Error](err); !ok {
		t.Errorf("a tag that moved: %v, want a verify.Error", err)
	}
	_, err = r.Manifest(t.Context(), "new")
	mustRefuse(t, err, errdefs.IsFailedPrecondition, "requires a newer version of Ollama")

	for _, s := range u.Requests() {
		if got := s.Header.Get("User-Agent"); !strings.HasPrefix(got, "ollama/") {
			t.Errorf("User-Agent is %q", got)
		}
		if got := s.Header.Get("Accept"); got != mediatype.OllamaManifestList+", "+mediatype.DockerManifest {
			t.Errorf("Accept is %q", got)
		}
		if s.URL.Path == "/v2/" {
			t.Error("the registry was pinged")
		}
	}
}

func TestManifestHostile(t *testing.T) {
	t.Parallel()
	good := manifestBytes("x")
	for _, tt := range []struct {
		name   string
		object string
		answer func(w http.ResponseWriter)
		is     func(error) bool
		want   string
	}{
		{"endless", "latest", func(w http.ResponseWriter) {
			io.WriteString(w, "{")
			for range 3 * convert.MaxManifestSize / 1024 {
				if _, err := w.Write(make([]byte, 1024)); err != nil {
					return
				}
			}
		}, errdefs.IsInvalidArgument, "more than"},
		{"HTML", "latest", func(w http.ResponseWriter) { io.WriteString(w, "<html>login</html>") }, errdefs.IsInvalidArgument, "not a manifest"},
		{"gzip that is none", "latest", func(w http.ResponseWriter) { w.Header().Set("Content-Encoding", "gzip"); w.Write(good) }, errdefs.IsUnavailable, "invalid header"},
		{"endless gzip", "latest", func(w http.ResponseWriter) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			for range 3 * convert.MaxManifestSize / 1024 {
				z.Write(make([]byte, 1024))
			}
			z.Close()
		}, errdefs.IsInvalidArgument, "more than"},
		{"another encoding", "latest", func(w http.ResponseWriter) { w.Header().Set("Content-Encoding", "br"); w.Write(good) }, errdefs.IsNotImplemented, `"br", which was not asked for`},
		{"empty", "latest", func(w http.ResponseWriter) {}, errdefs.IsInvalidArgument, "not a manifest"},
		{"other digest", digest.FromString("x").String(), func(w http.ResponseWriter) { w.Write(good) }, errdefs.IsDataLoss, "content has digest"},
		{"wrong digest header", "latest", func(w http.ResponseWriter) {
			w.Header().Set("Docker-Content-Digest", digest.FromString("x").String())
			w.Write(good)
		}, errdefs.IsDataLoss, "content has digest"},
		{"short", "latest", func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "5000")
			w.Write(good)
		}, errdefs.IsUnavailable, "unexpected EOF"},
		{"part", "latest", func(w http.ResponseWriter) { w.WriteHeader(http.StatusPartialContent); w.Write(good) }, errdefs.IsUnknown, "part"},
		{"500", "latest", func(w http.ResponseWriter) { w.WriteHeader(500) }, errdefs.IsUnavailable, "answered 500"},
		{"403", "latest", func(w http.ResponseWriter) {
			w.WriteHeader(403)
			io.WriteString(w, `{"errors":[{"code":"DENIED","message":"`+strings.Repeat("m", 10_000)+`"}]}`)
		}, errdefs.IsPermissionDenied, "DENIED mmm"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t)
			u.Before(func(w http.ResponseWriter, r *http.Request) bool { tt.answer(w); return true })
			_, err := u.repository(t, remote.Options{}, nil).Manifest(t.Context(), tt.object)
			mustRefuse(t, err, tt.is, tt.want)
			if len(err.Error()) > 1000 {
				t.Errorf("error of %d bytes", len(err.Error()))
			}
		})
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, header string
		status       int
		min, max     time.Duration
		none         bool
	}{
		{"seconds", "7", 429, 7 * time.Second, 7 * time.Second, false},
		{"huge", "99999999", 429, 60 * time.Second, 60 * time.Second, false},
		{"overflow", "99999999999999999999", 429, 0, 10 * time.Second, false},
		{"negative", "-5", 429, 0, 0, false},
		{"absent", "", 429, time.Second, 10 * time.Second, false},
		{"garbage", "soon", 503, time.Second, 10 * time.Second, false},
		{"date", "in 40 s", 503, 10 * time.Second, 41 * time.Second, false},
		{"503 without", "", 503, 0, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t)
			u.Before(func(w http.ResponseWriter, r *http.Request) bool {
				header := tt.header
				if tt.name == "date" {
					header = time.Now().Add(40 * time.Second).UTC().Format(http.TimeFormat)
				}
				w.Header().Set("Retry-After", header)
				w.WriteHeader(tt.status)
				return true
			})
			_, _, err := u.repository(t, remote.Options{}, nil).Fetch(t.Context(), digest.FromString("x"), 10, 0, 5)
			if !errdefs.IsUnavailable(err) {
				t.Errorf("category of %v", err)
			}
			ra, ok := errors.AsType[*transfer.RetryAfterError](err)
			if ok == tt.none {
				t.Fatalf("%v is a RetryAfterError: %t", err, ok)
			}
			if ok && (ra.After < tt.min || ra.After > tt.max) {
				t.Errorf("After is %s, want %s to %s", ra.After, tt.min, tt.max)
			}
		})
	}
}

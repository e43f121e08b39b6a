package remote_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// fetch reads all bytes of a range.
func fetch(ctx context.Context, r transfer.Fetcher, d digest.Digest, size, off, n int64) ([]byte, int64, error) {
	body, start, err := r.Fetch(ctx, d, size, off, n)
	if err != nil {
		return nil, 0, err
	}
	defer body.Close()
	p, err := io.ReadAll(body)
	return p, start, err
}

func TestFetch(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	content := random(100_000)
	d := u.putBlob(content)
	r := u.repository(t, remote.Options{}, nil)
	for _, tt := range [][2]int64{{0, 100_000}, {0, 1}, {99_999, 1}, {500, 70_000}, {0, 0}, {100_000, 0}} {
		off, n := tt[0], tt[1]
		got, start, err := fetch(t.Context(), r, d, 100_000, off, n)
		if err != nil || start != off || !bytes.Equal(got, content[off:off+n]) {
			t.Errorf("Fetch(%d, %d): %d bytes from %d, %v", off, n, len(got), start, err)
		}
	}
	for _, tt := range [][3]int64{{10, -1, 5}, {10, 5, 6}, {10, 11, 0}, {10, 0, -1}, {-1, 0, 0}, {10, 1 << 62, 1 << 62}} {
		if _, _, err := r.Fetch(t.Context(), d, tt[0], tt[1], tt[2]); !errdefs.IsInvalidArgument(err) {
			t.Errorf("Fetch(%v): %v, want ErrInvalidArgument", tt, err)
		}
	}
	if _, _, err := r.Fetch(t.Context(), digest.FromString("none"), 10, 0, 5); !errdefs.IsNotFound(err) {
		t.Errorf("a missing blob: %v", err)
	}
	for _, s := range u.Requests() {
		if got := s.Header.Get("Accept-Encoding"); got != "identity" {
			t.Errorf("Accept-Encoding is %q", got)
		}
	}
}

// TestFetchResponses checks which responses to a request for bytes 10 to 19 of 100 are accepted.
func TestFetchResponses(t *testing.T) {
	t.Parallel()
	content := random(100)
	d := digest.FromBytes(content)
	part := func(cr string, p []byte) func(w http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("Content-Range", cr)
			w.WriteHeader(http.StatusPartialContent)
			w.Write(p)
		}
	}
	for _, tt := range []struct {
		name   string
		answer func(w http.ResponseWriter)
		start  int64
		want   []byte // nil: an error of Fetch
	}{
		{"exact", part("bytes 10-19/100", content[10:20]), 10, content[10:20]},
		{"unknown size", part("bytes 10-19/*", content[10:20]), 10, content[10:20]},
		{"less", part("bytes 10-14/100", content[10:15]), 10, content[10:15]},
		{"more bytes than Content-Range says", part("bytes 10-19/100", content[10:40]), 10, content[10:20]},
		{"whole", func(w http.ResponseWriter) { w.Write(content) }, 0, content},
		{"encoded", func(w http.ResponseWriter) { w.Header().Set("Content-Encoding", "gzip"); w.Write(content) }, 0, content},
		{"whole blob of another size", func(w http.ResponseWriter) { w.Write(content[:50]) }, 0, nil},
		{"wrong start", part("bytes 0-9/100", content[:10]), 0, nil},
		{"more", part("bytes 10-29/100", content[10:30]), 0, nil},
		{"wrong total", part("bytes 10-19/1000", content[10:20]), 0, nil},
		{"backwards", part("bytes 10-9/100", content[10:20]), 0, nil},
		{"negative", part("bytes -10-19/100", content[10:20]), 0, nil},
		{"plus", part("bytes +10-19/100", content[10:20]), 0, nil},
		{"absent", part("", content[10:20]), 0, nil},
		{"other unit", part("items 10-19/100", content[10:20]), 0, nil},
		{"overflow", part("bytes 10-99999999999999999999/100", content[10:20]), 0, nil},
		{"multipart", func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "multipart/byteranges; boundary=x")
			part("bytes 10-19/100", content[10:20])(w)
		}, 0, nil},
		{"416", func(w http.ResponseWriter) { w.WriteHeader(416) }, 0, nil},
		{"204", func(w http.ResponseWriter) { w.WriteHeader(204) }, 0, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t)
			u.Before(func(w http.ResponseWriter, r *http.Request) bool {
				if got := r.Header.Get("Range"); got != "bytes=10-19" {
					t.Errorf("Range is %q", got)
				}
				tt.answer(w)
				return true
			})
			got, start, err := fetch(t.Context(), u.repository(t, remote.Options{}, nil), d, 100, 10, 10)
			if tt.want == nil {
				if err == nil {
					t.Fatalf("got %d bytes from %d, want an error", len(got), start)
				}
				return
			}
			if err != nil || start != tt.start || !bytes.Equal(got, tt.want) {
				t.Errorf("got %d bytes from %d, %v, want %d from %d", len(got), start, err, len(tt.want), tt.start)
			}
		})
	}
}

// stall is Options.Stall of tests of bodies that do stall.
const stall = 2 * time.Second

func TestFetchStall(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		drip bool // one byte at a time, with pauses
	}{{"silent", false}, {"dripping", true}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t)
			u.Before(func(w http.ResponseWriter, r *http.Request) bool {
				w.Header().Set("Content-Length", "100000")
				w.Write(random(5000))
				for w.(http.Flusher).Flush(); r.Context().Err() == nil; time.Sleep(20 * time.Millisecond) {
					if tt.drip {
						w.Write([]byte{1})
						w.(http.Flusher).Flush()
					}
				}
				return true
			})
			r := u.repository(t, remote.Options{Stall: stall}, nil)
			start := time.Now()
			got, _, err := fetch(t.Context(), r, digest.FromString("x"), 100_000, 0, 100_000)
			mustRefuse(t, err, errdefs.IsUnavailable, "bytes in "+stall.String())
			if len(got) < 5000 {
				t.Errorf("%d bytes before the stall", len(got))
			}
			if d := time.Since(start); d > time.Minute {
				t.Errorf("took %s", d)
			}
		})
	}
}

// TestSlowReaderDoesNotStall checks that the time of a slow reader does not count as a stall.
func TestSlowReaderDoesNotStall(t *testing.T) {
	t.Parallel()
	const stall = 10 * time.Second // longer than a pause of a program on a busy machine
	u := newUpstream(t)
	content := random(4 << 20)
	r := u.repository(t, remote.Options{Stall: stall}, nil)
	body, _, err := r.Fetch(t.Context(), u.putBlob(content), int64(len(content)), 0, int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	for range 2 {
		if _, err := io.ReadFull(body, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(stall + stall/10)
	}
}

func TestFetchCancel(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.Before(func(w http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, _, err := u.repository(t, remote.Options{}, nil).Fetch(ctx, digest.FromString("x"), 10, 0, 5)
	if err == nil || ctx.Err() == nil {
		t.Errorf("error %v, context %v", err, ctx.Err())
	}
}

// redirecting makes u redirect blobs to target plus the path.
func redirecting(u *upstream, status int, target string) {
	u.Before(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		w.Header().Set("Location", target+r.URL.Path+"?X-Signature="+secret)
		w.WriteHeader(status)
		return true
	})
}

// TestRedirectWithoutCredentials checks that credentials are not sent to the target of a redirect, and that the
// target is used again.
func TestRedirectWithoutCredentials(t *testing.T) {
	t.Parallel()
	for _, status := range []int{301, 302, 303, 307, 308} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			u, cdn := newUpstream(t), newUpstream(t)
			content := random(1000)
			d := cdn.putBlob(content)
			redirecting(u, status, cdn.URL)
			follow := u.Before(nil)
			u.Before(func(w http.ResponseWriter, r *http.Request) bool {
				if r.Header.Get("Authorization") == "" {
					w.Header().Set("WWW-Authenticate", "Basic")
					w.WriteHeader(401)
					return true
				}
				return follow(w, r)
			})
			dir := hostsDir(t, "registry.example", "server = \""+u.URL+"\"\n[header]\nX-Api-Key = \""+secret+"\"\nCookie = \"c="+secret+"\"\n")
			c := newClient(t, remote.Options{HostsDir: dir, AllowHosts: []string{cdn.Host()}})
			ref, err := remote.NewRef("registry.example", "org/model", "latest")
			if err != nil {
				t.Fatal(err)
			}
			r := repositoryOf(t, c, ref, &remote.Credentials{Username: "alice", Secret: secret})
			for range 3 {
				got, _, err := fetch(t.Context(), r, d, 1000, 100, 100)
				if err != nil || !bytes.Equal(got, content[100:200]) {
					t.Fatalf("got %d bytes, %v", len(got), err)
				}
			}
			if n := len(u.Requests()); n != 2 { // 401 and redirect
				t.Errorf("%d requests to the registry, want 2", n)
			}
			if got := u.Requests()[1].Header.Get("X-Api-Key"); got != secret {
				t.Errorf("the registry got X-Api-Key %q", got)
			}
			for _, s := range cdn.Requests() {
				for k, v := range s.Header {
					if k != "Range" && k != "User-Agent" && k != "Accept-Encoding" {
						t.Errorf("the CDN got %s: %s", k, v)
					}
				}
			}
		})
	}
}

// otherSpelling returns the URL of u with another spelling of its port.
func (u *upstream) otherSpelling() string {
	return strings.Replace(u.URL, "127.0.0.1:", "127.0.0.1:0", 1)
}

// TestRedirectSameOrigin checks that a redirect within the registry keeps the credentials, also if it spells the port in
// another way.
func TestRedirectSameOrigin(t *testing.T) {
	t.Parallel()
	for _, server := range []func(*upstream) string{func(*upstream) string { return "" }, (*upstream).otherSpelling} {
		u := newUpstream(t)
		content := random(1000)
		d := u.putBlob(content)
		u.Before(func(w http.ResponseWriter, r *http.Request) bool {
			if basicAuth(w, r) {
				return true
			}
			if r.URL.RawQuery == "" {
				http.Redirect(w, r, server(u)+r.URL.Path+"?moved=1", http.StatusTemporaryRedirect)
				return true
			}
			return false
		})
		r := u.repository(t, remote.Options{}, &remote.Credentials{Username: "alice", Secret: secret})
		if got, _, err := fetch(t.Context(), r, d, 1000, 0, 1000); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%q: got %d bytes, %v", server(u), len(got), err)
		}
	}
}

// TestRedirectExpires checks that the registry is asked for a new target when the last one has expired.
func TestRedirectExpires(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 401, 403, 404, 410, 500} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			u, cdn := newUpstream(t), newUpstream(t)
			content := random(1000)
			d := cdn.putBlob(content)
			var issued, valid atomic.Int64
			u.Before(func(w http.ResponseWriter, r *http.Request) bool {
				http.Redirect(w, r, fmt.Sprintf("%s%s?sig=%d", cdn.URL, r.URL.Path, issued.Add(1)), http.StatusTemporaryRedirect)
				valid.Store(issued.Load())
				return true
			})
			cdn.Before(func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Query().Get("sig") == strconv.FormatInt(valid.Load(), 10) {
					return false
				}
				w.WriteHeader(status)
				return true
			})
			r := u.repository(t, remote.Options{AllowHosts: []string{cdn.Host()}}, nil)
			for range 3 {
				for range 2 {
					if _, _, err := fetch(t.Context(), r, d, 1000, 0, 10); err != nil {
						t.Fatal(err)
					}
				}
				valid.Store(-1) // all targets expire
			}
			if n := issued.Load(); n != 3 {
				t.Errorf("%d redirects issued, want 3", n)
			}
		})
	}
}

func TestRedirectRefused(t *testing.T) {
	t.Parallel()
	victim := newUpstream(t)
	_, port, _ := strings.Cut(victim.Host(), ":")
	for _, tt := range []struct{ name, location, want string }{
		{"other port of loopback", victim.URL, "not public"},
		{"other loopback", "http://127.0.0.2:" + port, "not public"},
		{"localhost", "http://localhost:" + port, "internal"},
		{"IPv6 loopback", "http://[::1]:" + port, "not public"},
		{"mapped", "http://[::ffff:127.0.0.1]:" + port, "not public"},
		{"NAT64", "http://[64:ff9b::7f00:1]:" + port, "not public"},
		{"unspecified", "http://0.0.0.0:" + port, "not public"},
		{"metadata", "http://169.254.169.254/latest/meta-data", "not public"},
		{"metadata by name", "http://metadata.google.internal/", "internal"},
		{"private", "http://192.168.1.1/", "not public"},
		{"CGNAT", "http://100.64.0.1/", "not public"},
		{"multicast", "http://224.0.0.1/", "not public"},
		{"benchmark", "http://198.18.0.1/", "not public"},
		{"unique local", "http://[fd00::1]/", "not public"},
		{"service", "http://vault.default.svc/", "internal"},
		{"docker", "http://host.docker.internal/", "internal"},
		{"short name", "http://printer/", "internal"},
		{"user name", "http://u:" + secret + "@" + victim.Host(), "user name"},
		{"scheme", "file:///etc/passwd", "scheme"},
		{"gopher", "gopher://x/", "scheme"},
		{"no host", "http:///x", "no host"},
		{"garbage", "http://[::1", "no valid Location"},
		{"absent", "", "no valid Location"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := newUpstream(t)
			u.Before(func(w http.ResponseWriter, r *http.Request) bool {
				w.Header().Set("Location", tt.location)
				w.WriteHeader(307)
				return true
			})
			r := u.repository(t, remote.Options{}, nil)
			_, _, err := r.Fetch(t.Context(), digest.FromString("x"), 10, 0, 5)
			mustRefuse(t, err, errdefs.IsPermissionDenied, tt.want)
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error contains the secret: %v", err)
			}
		})
	}
	if n := len(victim.Requests()); n != 0 {
		t.Errorf("the target got %d requests, want 0", n)
	}
}

func TestRedirectLoop(t *testing.T) {
	t.Parallel()
	u, other := newUpstream(t), newUpstream(t)
	loop := func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
		return true
	}
	u.Before(loop)
	_, _, err := u.repository(t, remote.Options{}, nil).Fetch(t.Context(), digest.FromString("x"), 10, 0, 5)
	mustRefuse(t, err, errdefs.IsFailedPrecondition, "redirects")
	if n := len(u.Requests()); n != 11 {
		t.Errorf("%d requests, want 11", n)
	}
	redirecting(u, 307, other.URL)
	other.Before(loop)
	_, _, err = u.repository(t, remote.Options{AllowHosts: []string{"127.0.0.1"}}, nil).Fetch(t.Context(), digest.FromString("x"), 10, 0, 5)
	mustRefuse(t, err, errdefs.IsFailedPrecondition, "redirects")
	if n := len(other.Requests()); n != 10 {
		t.Errorf("%d requests, want 10", n)
	}
}

// TestRedirectDowngradeRefused checks that a redirect from https to http is refused.
func TestRedirectDowngradeRefused(t *testing.T) {
	t.Parallel()
	u, plain := newTLSUpstream(t), newUpstream(t)
	redirecting(u, 307, plain.URL)
	_, _, err := u.repository(t, remote.Options{AllowHosts: []string{"127.0.0.1"}}, nil).Fetch(t.Context(), digest.FromString("x"), 10, 0, 5)
	mustRefuse(t, err, errdefs.IsPermissionDenied, "from https to http")
	if n := len(plain.Requests()); n != 0 {
		t.Errorf("%d requests over http", n)
	}
}

// TestRedirectBack checks that a redirect back to the registry does not get the credentials again.
func TestRedirectBack(t *testing.T) {
	t.Parallel()
	u, other := newUpstream(t), newUpstream(t)
	content := random(100)
	d := u.putBlob(content)
	redirecting(other, 307, u.URL)
	var back atomic.Bool
	u.Before(func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.URL.RawQuery != "":
			back.Store(true)
			if got := r.Header.Get("Authorization"); got != "" {
				t.Errorf("the registry got Authorization %q after a redirect back", got)
			}
			return false
		case r.Header.Get("Authorization") == "":
			w.Header().Set("WWW-Authenticate", "Basic")
			w.WriteHeader(401)
		default:
			http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
		}
		return true
	})
	r := u.repository(t, remote.Options{AllowHosts: []string{other.Host()}}, &remote.Credentials{Username: "a", Secret: secret})
	if _, _, err := fetch(t.Context(), r, d, 100, 0, 100); err != nil || !back.Load() {
		t.Errorf("error %v, came back: %t", err, back.Load())
	}
}

// TestErrorsHideSignedURLs checks that errors do not contain the signed address of a target.
func TestErrorsHideSignedURLs(t *testing.T) {
	t.Parallel()
	dead := newUpstream(t)
	dead.Close()
	broken := newUpstream(t)
	broken.Before(func(w http.ResponseWriter, r *http.Request) bool {
		http.Error(w, r.URL.String(), 500)
		return true
	})
	for _, target := range []string{dead.URL, broken.URL, "http://192.168.0.1"} {
		u := newUpstream(t)
		redirecting(u, 307, target)
		c := newClient(t, remote.Options{AllowHosts: []string{"127.0.0.0/8"}})
		_, _, err := repositoryOf(t, c, u.ref(t, "x"), nil).Fetch(t.Context(), digest.FromString("x"), 10, 0, 5)
		if err == nil {
			t.Fatal("no error")
		}
		if s := err.Error(); strings.Contains(s, secret) || strings.Contains(s, "X-Signature") {
			t.Errorf("the error contains the signed address: %s", s)
		}
	}
}

// TestFetchParallel reads many ranges at the same time.
func TestFetchParallel(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	content := random(1 << 20)
	d := u.putBlob(content)
	r := u.repository(t, remote.Options{Connections: 8}, nil)
	const part = 1 << 16
	errs := make([]error, 16)
	t.Run("group", func(t *testing.T) {
		for i := range errs {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				got, _, err := fetch(t.Context(), r, d, 1<<20, int64(i)*part, part)
				if err == nil && !bytes.Equal(got, content[i*part:(i+1)*part]) {
					err = fmt.Errorf("wrong bytes")
				}
				errs[i] = err
			})
		}
	})
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		t.Error(errs[i])
	}
}

// TestClosedBody checks that a read after Close does not return context.Canceled unless the context of
// the caller has ended.
func TestClosedBody(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	d := u.putBlob(random(1 << 20))
	r := u.repository(t, remote.Options{}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	read := func() error {
		body, _, err := r.Fetch(ctx, d, 1<<20, 0, 1<<20)
		if err != nil {
			return err
		}
		if _, err := io.CopyN(io.Discard, body, 10); err != nil {
			t.Fatal(err)
		}
		body.Close()
		_, err = io.ReadAll(body)
		return err
	}
	if err := read(); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want another error than canceled", err)
	}
	body, _, err := r.Fetch(ctx, d, 1<<20, 0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	cancel()
	if _, err := io.ReadAll(body); err != nil && !errors.Is(err, context.Canceled) { // all bytes may have arrived before
		t.Errorf("got %v, want canceled", err)
	}
	if err := read(); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: got %v, want canceled", err)
	}
}

func TestBlob(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	content := random(1000)
	d := u.putBlob(content)
	resp, err := u.repository(t, remote.Options{}, nil).Blob(t.Context(), d, "bytes=10-")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 206 || resp.Header.Get("Content-Range") != "bytes 10-999/1000" || !bytes.Equal(got, content[10:]) {
		t.Errorf("status %d, %q, %d bytes, %v", resp.StatusCode, resp.Header.Get("Content-Range"), len(got), err)
	}
	if _, err := u.repository(t, remote.Options{}, nil).Blob(t.Context(), "sha256:../x", ""); !errdefs.IsInvalidArgument(err) {
		t.Errorf("an invalid digest: %v", err)
	}
}

// elsewhere is a dialect that sends the requests for its host, as they are, to a redirect target.
type elsewhere struct {
	host        string
	credentials *atomic.Bool // whether a request for the host had some
}

func (e elsewhere) RoundTrip(req *http.Request, ways remote.Ways) (*http.Response, error) {
	if req.Header.Get("Authorization") != "" {
		e.credentials.Store(true)
	}
	to := req.Clone(req.Context())
	to.URL.Scheme, to.URL.Host, to.Host = "http", e.host, e.host
	resp, err := ways.Outside.RoundTrip(to)
	if err == nil {
		resp.Request = req
	}
	return resp, err
}

func (elsewhere) Remind(string, []byte) {}

// TestOutsideWithoutCredentials checks that a dialect cannot send the credentials for its host to a redirect target.
func TestOutsideWithoutCredentials(t *testing.T) {
	t.Parallel()
	u, cdn := newUpstream(t), newUpstream(t)
	cdn.Before(func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("WWW-Authenticate", "Basic")
		w.WriteHeader(401)
		return true
	})
	var credentials atomic.Bool
	o := remote.Options{AllowHosts: []string{cdn.Host()}, Dialects: map[string]remote.Dialect{u.Host(): elsewhere{cdn.Host(), &credentials}}}
	r := u.repository(t, o, &remote.Credentials{Username: "alice", Secret: secret})
	if _, err := r.Manifest(t.Context(), "latest"); !errdefs.IsUnauthorized(err) || !credentials.Load() {
		t.Errorf("got %v, want unauthorized; the host got credentials: %v", err, credentials.Load())
	}
	for _, s := range cdn.Requests() {
		if s.Header.Get("Authorization") != "" {
			t.Error("the target got credentials")
		}
	}
}

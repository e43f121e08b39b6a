package remote

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A drip is a body that returns a piece at regular intervals, until ctx ends.
type drip struct {
	ctx   context.Context
	size  int64 // left
	piece int
	every time.Duration
	here  int // of a piece
}

func (d *drip) Read(p []byte) (int, error) {
	if d.size <= 0 {
		return 0, io.EOF
	}
	if d.here == 0 {
		select {
		case <-time.After(d.every):
		case <-d.ctx.Done():
			return 0, d.ctx.Err()
		}
		d.here = int(min(int64(d.piece), d.size))
	}
	n := min(d.here, len(p))
	d.here -= n
	d.size -= int64(n)
	return n, nil
}

func (d *drip) Close() error { return nil }

// TestStallRate checks that a body below the minimal rate ends with an error, and that a body with its
// share of a slow link does not.
func TestStallRate(t *testing.T) {
	const size = 1 << 20
	tests := []struct {
		name  string
		piece int
		every time.Duration
		ok    bool
	}{
		{"a byte a second", 1, time.Second, false},
		{"2 KiB in ten seconds", 2 << 10, 10 * time.Second, false},
		{"half of the minimal rate", 512, time.Second, false},
		{"twice the minimal rate", 2 << 10, time.Second, true},
		{"a 24th of 56 KiB/s, a packet at a time", 1448, 24 * 1448 * time.Second / (56 << 10), true},
		{"a 24th of 56 KiB/s, in large pieces", 56 << 10, 24 * time.Second, true},
		{"all of 56 KiB/s", 1448, 1448 * time.Second / (56 << 10), true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				b := newStallBody(t.Context(), &drip{ctx: ctx, size: size, piece: test.piece, every: test.every}, defaultStall, cancel, false)
				start := time.Now()
				n, err := io.Copy(io.Discard, b)
				b.Close()
				switch {
				case test.ok && (err != nil || n != size):
					t.Errorf("given up after %d bytes: %v", n, err)
				case !test.ok && (!errdefs.IsUnavailable(err) || errors.Is(err, context.Canceled)):
					t.Errorf("got %v after %v, want unavailable", err, time.Since(start))
				case !test.ok && time.Since(start) > 2*defaultStall:
					t.Errorf("given up after %v", time.Since(start))
				}
			})
		})
	}
}

// TestPausesOfReader checks that pauses between reads do not count.
func TestPausesOfReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		b := newStallBody(t.Context(), &drip{ctx: ctx, size: 20, piece: 1, every: time.Second}, defaultStall, cancel, false)
		p := make([]byte, 1)
		for range 20 {
			if _, err := b.Read(p); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * defaultStall)
		}
		b.Close()
	})
}

// silent returns a body that has no bytes and no end.
func silent() io.ReadCloser {
	body, _ := io.Pipe()
	return body
}

// TestSilentAnswers checks that redirects and errors without the body that their headers announce are what they would be
// with it.
func TestSilentAnswers(t *testing.T) {
	t.Parallel()
	const here, elsewhere = "/moved", "https://cdn.example/x"
	tests := []struct {
		status  int
		header  []string
		outside int // status of the target of a redirect
		is      func(error) bool
	}{
		{status: http.StatusTemporaryRedirect, header: []string{"Location", here}},
		{status: http.StatusTemporaryRedirect, header: []string{"Location", elsewhere}, outside: http.StatusOK},
		{status: http.StatusTemporaryRedirect, header: []string{"Location", elsewhere}, outside: http.StatusTemporaryRedirect},
		{status: http.StatusTemporaryRedirect, header: []string{"Location", elsewhere}, outside: http.StatusNotFound, is: errdefs.IsNotFound},
		{status: http.StatusUnauthorized, header: []string{"WWW-Authenticate", `Bearer realm="https://registry.example/token",service="s"`}},
		{status: http.StatusUnauthorized, header: []string{"WWW-Authenticate", "Basic"}, is: errdefs.IsUnauthorized},
		{status: http.StatusForbidden, is: errdefs.IsPermissionDenied},
		{status: http.StatusNotFound, is: errdefs.IsNotFound},
		{status: http.StatusTooManyRequests, is: errdefs.IsUnavailable},
		{status: http.StatusInternalServerError, is: errdefs.IsUnavailable},
	}
	for _, test := range tests {
		synctest.Test(t, func(t *testing.T) {
			r, e := fakeRepository(t)
			answer := func(req *http.Request, status int, header ...string) (*http.Response, error) {
				if status == http.StatusOK {
					return fakeResponse(req, status, http.NoBody), nil
				}
				return fakeResponse(req, status, silent(), header...), nil
			}
			e.direct = roundTripper(func(req *http.Request) (*http.Response, error) {
				if req.URL.Path == here || req.Header.Get("Authorization") != "" {
					return answer(req, http.StatusOK)
				}
				return answer(req, test.status, test.header...)
			})
			e.outside = roundTripper(func(req *http.Request) (*http.Response, error) {
				if req.URL.Path == here {
					return answer(req, http.StatusOK)
				}
				return answer(req, test.outside, "Location", here)
			})
			e.realm = roundTripper(func(req *http.Request) (*http.Response, error) {
				return fakeResponse(req, http.StatusOK, io.NopCloser(strings.NewReader(`{"token":"x"}`))), nil
			})
			start := time.Now()
			resp, err := r.do(t.Context(), e, request{path: "manifests/latest"})
			if err == nil {
				resp.Body.Close()
			}
			if test.is == nil && err != nil || test.is != nil && !test.is(err) || time.Since(start) > 2*drainTime {
				t.Errorf("%d %q %d: got %v after %v", test.status, test.header, test.outside, err, time.Since(start))
			}
		})
	}
}

// A readsAll is a Dialect that reads what is at a URL.
type readsAll struct {
	from func(Ways) http.RoundTripper
	url  *url.URL
}

func (d readsAll) RoundTrip(req *http.Request, ways Ways) (*http.Response, error) {
	resp, err := d.from(ways).RoundTrip((&http.Request{Method: http.MethodGet, URL: d.url, Host: d.url.Host, Header: http.Header{}}).WithContext(req.Context()))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	_, err = io.ReadAll(resp.Body)
	return nil, err
}

func (readsAll) Remind(string, []byte) {}

// TestDialectStall checks that what a Dialect reads ends if it stalls.
func TestDialectStall(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "11")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, from := range []func(Ways) http.RoundTripper{
		func(w Ways) http.RoundTripper { return w.Host }, func(w Ways) http.RoundTripper { return w.Outside },
	} {
		c, err := New(Options{Stall: time.Second, AllowHosts: []string{u.Host}, Dialects: map[string]Dialect{"hub.example": readsAll{from, u}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		r, err := c.Repository(Ref{Host: "hub.example", Repository: "a/b"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Blob(t.Context(), digest.FromString("x"), ""); !errdefs.IsUnavailable(err) {
			t.Errorf("got %v, want unavailable", err)
		}
	}
}

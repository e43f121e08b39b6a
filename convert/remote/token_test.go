package remote

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// fakeRepository returns a repository without a network, whose client has the default limits.
func fakeRepository(t *testing.T) (*Repository, *endpoint) {
	t.Helper()
	c, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	r, err := c.Repository(Ref{Host: "registry.example", Repository: "org/model"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r, r.origin()
}

// fakeResponse returns a response with a body and pairs of header fields and values.
func fakeResponse(req *http.Request, status int, body io.ReadCloser, header ...string) *http.Response {
	h := http.Header{}
	for i := 0; i < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: body, ContentLength: -1, Request: req}
}

// TestTokenOfEndedCaller: callers share one token request. When the deadline of the one that sent it is over, the other
// one sends another.
func TestTokenOfEndedCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, e := fakeRepository(t)
		e.direct = roundTripper(func(req *http.Request) (*http.Response, error) {
			if req.Header.Get("Authorization") == "Bearer good" {
				return fakeResponse(req, http.StatusOK, http.NoBody), nil
			}
			return fakeResponse(req, http.StatusUnauthorized, http.NoBody, "WWW-Authenticate", `Bearer realm="https://registry.example/token",service="s"`), nil
		})
		asked := 0
		e.realm = roundTripper(func(req *http.Request) (*http.Response, error) {
			if asked++; asked == 1 {
				<-req.Context().Done()
				return nil, context.Cause(req.Context())
			}
			return fakeResponse(req, http.StatusOK, io.NopCloser(strings.NewReader(`{"token":"good"}`))), nil
		})
		do := func(ctx context.Context) error {
			resp, err := r.do(ctx, e, request{path: "manifests/latest"})
			if err == nil {
				err = resp.Body.Close()
			}
			return err
		}
		first := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			first <- do(ctx)
		}()
		synctest.Wait()
		if err := do(t.Context()); err != nil || asked != 2 {
			t.Errorf("after %d token requests: %v", asked, err)
		}
		if err := <-first; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the caller whose deadline is over: %v", err)
		}
	})
}

// TestTimeoutOfConnection: the timeout of a connection is not taken for the deadline of another caller.
func TestTimeoutOfConnection(t *testing.T) {
	t.Parallel()
	_, timeout := (&net.Dialer{Deadline: time.Unix(1, 0)}).DialContext(t.Context(), "tcp", "127.0.0.1:1")
	if !errors.Is(timeout, context.DeadlineExceeded) {
		t.Fatalf("got %v, want a timeout", timeout)
	}
	for err, want := range map[error]bool{context.DeadlineExceeded: true, timeout: false} {
		if got := isDeadline(authError("registry.example", &url.Error{Op: "Get", URL: "https://registry.example/token", Err: err})); got != want {
			t.Errorf("%v: got %t, want %t", err, got, want)
		}
	}
}

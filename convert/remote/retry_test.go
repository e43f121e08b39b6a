package remote_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
)

// troubled makes u answer the first requests whose path contains word with answers. Later ones get the
// right response.
func troubled(u *upstream, word string, answers ...func(w http.ResponseWriter)) *atomic.Int64 {
	n := new(atomic.Int64)
	u.Before(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, word) {
			return false
		}
		i := n.Add(1)
		if int(i) > len(answers) {
			return false
		}
		answers[i-1](w)
		return true
	})
	return n
}

func status(code int, header ...string) func(w http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
	}
}

// cut announces a manifest and closes the connection after a few bytes.
func cut(w http.ResponseWriter) {
	w.Header().Set("Content-Length", "1000")
	fmt.Fprint(w, `{"schemaVersion"`)
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

// hangUp closes the connection without a response.
func hangUp(http.ResponseWriter) { panic(http.ErrAbortHandler) }

// TestManifestRetry checks that a request is repeated after a temporary problem.
func TestManifestRetry(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(http.ResponseWriter){
		"429 with Retry-After": status(429, "Retry-After", "0"),
		"502":                  status(502), "503": status(503), "504": status(504), "500": status(500),
		"503 with Retry-After": status(503, "Retry-After", "0"),
		"cut off":              cut, "hang-up": hangUp,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t)
			p := manifestBytes("x")
			ref := u.ref(t, "latest")
			u.putManifest("latest", p)
			n := troubled(u, "/manifests/", answer, answer, answer)
			m, err := u.repository(t, remote.Options{}, nil).Resolve(t.Context(), ref)
			if err != nil || string(m.Bytes) != string(p) {
				t.Errorf("after three errors: %v", err)
			}
			if got := n.Load(); got != 4 {
				t.Errorf("%d requests, want 4", got)
			}
		})
	}
}

// TestManifestNoRetry checks that a request is not repeated after a permanent error.
func TestManifestNoRetry(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer func(http.ResponseWriter)
		is     func(error) bool
	}{
		"400":                  {status(400), errdefs.IsUnknown},
		"403":                  {status(403), errdefs.IsPermissionDenied},
		"404":                  {status(404), errdefs.IsNotFound},
		"412":                  {status(412), errdefs.IsFailedPrecondition},
		"451":                  {status(451), errdefs.IsPermissionDenied},
		"no manifest":          {func(w http.ResponseWriter) { fmt.Fprint(w, "<html>") }, errdefs.IsInvalidArgument},
		"429 to a stranger":    {status(429), errdefs.IsUnavailable},
		"Retry-After too long": {status(429, "Retry-After", "3600"), errdefs.IsUnavailable},
		"another digest": {func(w http.ResponseWriter) {
			w.Header().Set("Docker-Content-Digest", "sha256:"+strings.Repeat("0", 64))
			w.Write(manifestBytes("x"))
		}, errdefs.IsDataLoss},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t)
			u.putManifest("latest", manifestBytes("x"))
			n := troubled(u, "/manifests/", tt.answer)
			if _, err := u.repository(t, remote.Options{}, nil).Manifest(t.Context(), "latest"); !tt.is(err) {
				t.Errorf("got %v", err)
			}
			if got := n.Load(); got != 1 {
				t.Errorf("%d requests, want 1", got)
			}
		})
	}
}

// TestManifestRetryEnds checks that retries end after a number of attempts, and with the context of the
// caller.
func TestManifestRetryEnds(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	bad := status(503)
	n := troubled(u, "/manifests/", bad, bad, bad, bad, bad, bad)
	r := u.repository(t, remote.Options{}, nil)
	if _, err := r.Manifest(t.Context(), "latest"); !errdefs.IsUnavailable(err) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	if got := n.Load(); got != 4 {
		t.Errorf("%d requests, want 4", got)
	}

	ctx, cancel := context.WithCancel(t.Context())
	var asked atomic.Int64
	u.Before(func(w http.ResponseWriter, r *http.Request) bool {
		asked.Add(1)
		status(429, "Retry-After", "9")(w)
		time.AfterFunc(10*time.Millisecond, cancel) // during a pause
		return true
	})
	start := time.Now()
	if _, err := r.Manifest(ctx, "latest"); err == nil || time.Since(start) > 8*time.Second {
		t.Errorf("after the caller has gone: %v after %v", err, time.Since(start))
	}
	if got := asked.Load(); got != 1 {
		t.Errorf("%d requests, want 1", got)
	}
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestManifestRetryMirrors checks that the next host is asked without a pause.
func TestManifestRetryMirrors(t *testing.T) {
	t.Parallel()
	mirror, server := newUpstream(t), newUpstream(t)
	server.putManifest("latest", manifestBytes("x"))
	n := troubled(mirror, "/manifests/", status(503), status(503))
	dir := hostsDir(t, "registry.example", "server = \""+server.URL+"\"\n[host.\""+mirror.URL+"\"]\n")
	if _, err := manifestVia(t, remote.Options{HostsDir: dir}, "latest"); err != nil {
		t.Fatal(err)
	}
	if got, want := n.Load(), int64(1); got != want || len(server.Requests()) != 1 {
		t.Errorf("%d requests of the mirror and %d of the server, want one of each", got, len(server.Requests()))
	}
}

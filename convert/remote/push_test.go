package remote_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// uploads is a registry that accepts uploads: read handles the body of each.
func uploads(t *testing.T, read func(io.Reader)) *remote.Repository {
	t.Helper()
	u := newUpstream(t)
	u.Before(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost {
			return false
		}
		read(r.Body)
		w.WriteHeader(http.StatusCreated)
		return true
	})
	return u.repository(t, remote.Options{Stall: stall}, nil)
}

// put uploads size bytes from body.
func put(t *testing.T, r *remote.Repository, size int64, body io.Reader) error {
	return r.Put(t.Context(), digest.FromString("x"), size, func(context.Context) (io.ReadCloser, error) { return io.NopCloser(body), nil })
}

// zeros are endless.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestPutToStalledRegistry checks that an upload ends if the registry reads no more bytes.
func TestPutToStalledRegistry(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	r := uploads(t, func(io.Reader) { <-end })
	t.Cleanup(func() { close(end) }) // before the server is closed
	start := time.Now()
	if err := put(t, r, 1<<30, zeros{}); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "does not accept bytes") {
		t.Errorf("got %v, want errdefs.ErrUnavailable", err)
	}
	if d := time.Since(start); d > time.Minute {
		t.Errorf("took %s", d)
	}
}

// slow returns one byte for each read, after a pause.
type slow struct{ pause time.Duration }

func (s slow) Read(p []byte) (int, error) {
	time.Sleep(s.pause)
	return 1, nil
}

// TestPutFromSlowReader checks that the time in which the source has no bytes does not count as a stall.
func TestPutFromSlowReader(t *testing.T) {
	t.Parallel()
	r := uploads(t, func(body io.Reader) { io.Copy(io.Discard, body) })
	if err := put(t, r, 2, io.LimitReader(slow{stall + stall/4}, 2)); err != nil {
		t.Error(err)
	}
}

// TestPutReturnsErrorOfReader checks that an error of the source is returned as it is, and that a source
// with too few bytes is an error.
func TestPutReturnsErrorOfReader(t *testing.T) {
	t.Parallel()
	r := uploads(t, func(body io.Reader) { io.Copy(io.Discard, body) })
	broken := errors.New("broken")
	for _, tt := range []struct {
		body io.Reader
		want error
	}{
		{io.MultiReader(strings.NewReader("ab"), errorReader{broken}), broken},
		{strings.NewReader("ab"), io.ErrUnexpectedEOF},
	} {
		if err := put(t, r, 10, tt.body); !errors.Is(err, tt.want) {
			t.Errorf("got %v, want %v", err, tt.want)
		}
	}
}

type errorReader struct{ err error }

func (r errorReader) Read([]byte) (int, error) { return 0, r.err }

// TestPutStreamAnsweredEarly: a registry that answers before it has read all bytes has no blob with the digest of those
// that were sent.
func TestPutStreamAnsweredEarly(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.Before(func(w http.ResponseWriter, r *http.Request) bool {
		switch r.Method {
		case http.MethodPatch:
			_, _ = io.CopyN(io.Discard, r.Body, 1<<20)
			w.Header().Set("Location", r.URL.Path)
			w.WriteHeader(http.StatusAccepted)
		case http.MethodPut:
			w.WriteHeader(http.StatusCreated)
		default:
			return false
		}
		return true
	})
	const size = 64 << 20 // more than is sent ahead
	d, err := u.repository(t, remote.Options{}, nil).PutStream(t.Context(), size, func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(io.LimitReader(zeros{}, size)), nil
	})
	if err == nil || d != "" {
		t.Errorf("got %q, %v, want an error", d, err)
	}
}

// TestUploadAtOtherSpelling checks that an upload keeps the credentials if the registry spells its port in another way.
func TestUploadAtOtherSpelling(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.Before(func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case basicAuth(w, r):
		case r.Method == http.MethodPost:
			w.Header().Set("Location", u.otherSpelling()+r.URL.Path+"1")
			w.WriteHeader(http.StatusAccepted)
		case r.Method == http.MethodPut:
			w.WriteHeader(http.StatusCreated)
		default:
			return false
		}
		return true
	})
	r := u.repository(t, remote.Options{}, &remote.Credentials{Username: "alice", Secret: secret})
	if err := put(t, r, 1, strings.NewReader("x")); err != nil {
		t.Error(err)
	}
}

// TestHasOfRedirect checks that a registry may redirect the question whether it has a blob, as it does requests for the
// blob itself.
func TestHasOfRedirect(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.Serve("/storage/org/model/blobs/"+digest.FromString("x").String(), []byte("x"))
	u.Before(func(w http.ResponseWriter, r *http.Request) bool {
		path, ok := strings.CutPrefix(r.URL.Path, "/v2/")
		switch {
		case ok:
			http.Redirect(w, r, "/storage/"+path, http.StatusTemporaryRedirect)
		case r.Method != http.MethodHead:
			http.NotFound(w, r)
		default:
			return false
		}
		return true
	})
	r := u.repository(t, remote.Options{}, nil)
	for content, want := range map[string]bool{"x": true, "y": false} {
		if got, err := r.Has(t.Context(), digest.FromString(content), 1); err != nil || got != want {
			t.Errorf("%s: got %v, %v, want %v", content, got, err, want)
		}
	}
}

package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/admin"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/care"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/jobs"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// FuzzRequest sends requests to the admin interface of an empty store: whatever they contain, the
// response is JSON, and errors are errors of the client.
func FuzzRequest(f *testing.F) {
	dir, err := os.MkdirTemp("", "admin")
	if err != nil {
		f.Fatal(err)
	}
	s, err := store.Open(dir, store.Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.Close(); os.RemoveAll(dir) })
	noProblems := []wire.SnapshotProblem{}
	verifies := &fakeCare{problems: &noProblems}
	h := (&admin.Handler{
		Store: s, Metrics: http.NotFoundHandler(), Jobs: strictJobs{&fakeJobs{store: s, status: new(wire.Status)}}, Mounts: strictMounts{},
		Care: &care.Care{Store: s, Jobs: verifies, Sources: verifies, Snapshots: verifies, Log: slog.New(slog.DiscardHandler)}, Node: &fakeNode{}, Facade: new(registry.Handler),
	}).Routes()
	endpoints := []string{
		"GET /v1/image", "DELETE /v1/image", "PUT /v1/pin", "DELETE /v1/pin", "POST /v1/gc", "POST /v1/prefetch", "POST /v1/import",
		"POST /v1/import/models", "PUT /v1/pause", "POST /v1/verify", "GET /v1/images", "GET /v1/pins", "GET /v1/df",
		"POST /v1/mount", "POST /v1/import/archive", "GET /v1/asked", "POST /v1/login",
	}
	for i := range endpoints {
		for _, body := range []string{"", "{}", `{"ref":"ghcr.io/a/b:1","ttl":1}`, `{"ref":"../x"}`, `{"keep":-1}`, `{"name":"x","dir":"/"}`, "[", "null", `{"ttl":-1}`} {
			f.Add(uint8(i), "ref=ghcr.io/a/b:1&name=sha256:00&remote=1", []byte(body))
		}
	}
	f.Add(uint8(slices.Index(endpoints, "POST /v1/login")), "", []byte(`{"of":[{"name":"a/b","username":"u","secret":"s"},{}]}`))
	f.Add(uint8(slices.Index(endpoints, "POST /v1/import/archive")), `request={"path":"x","ttl":-1,"name":"..%2Fa"}`, []byte("tar"))
	f.Fuzz(func(t *testing.T, i uint8, query string, body []byte) {
		method, path, _ := bytes.Cut([]byte(endpoints[int(i)%len(endpoints)]), []byte(" "))
		r := httptest.NewRequest(string(method), string(path), bytes.NewReader(body))
		r.URL = &url.URL{Path: string(path), RawQuery: query}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code >= 500 && w.Code != http.StatusNotImplemented {
			t.Fatalf("%s %s: status %d: %s", method, path, w.Code, w.Body)
		}
		for dec := json.NewDecoder(w.Body); dec.More(); {
			var v any
			if err := dec.Decode(&v); err != nil {
				t.Fatalf("%s %s: the answer is not JSON: %v", method, path, err)
			}
		}
	})
}

// strictJobs panics if a request that is not valid comes through.
type strictJobs struct{ *fakeJobs }

func (strictJobs) Prefetch(_ context.Context, ref remote.Ref, r jobs.Request, _ func([]wire.Event) error) (store.Image, error) {
	if _, err := remote.ParseRef(ref.String()); err != nil || r.TTL < 0 || r.Rate < 0 {
		panic("a request that is not valid came through: " + r.Ref)
	}
	return store.Image{}, nil
}

func (strictJobs) Import(context.Context, wire.ImportRequest, func([]wire.Event) error) ([]wire.Imported, error) {
	return nil, nil
}

func (strictJobs) ImportModels(context.Context, string) ([]string, error) { return nil, nil }

func (strictJobs) ImportArchive(_ context.Context, r wire.ArchiveRequest, _ io.Reader, _ func([]wire.Event) error) ([]wire.Imported, error) {
	if r.TTL < 0 || r.Path != "" && !filepath.IsAbs(r.Path) {
		panic("a request that is not valid came through: " + r.Path)
	}
	return nil, nil
}

func (strictJobs) Rest(_ context.Context, im store.Image, _ remote.Ref, r jobs.Request, _ func([]wire.Event) error) (store.Image, error) {
	if r.TTL < 0 || r.Rate < 0 {
		panic("a request that is not valid came through: " + r.Ref)
	}
	return im, nil
}

func (strictJobs) Convert(_ context.Context, ref remote.Ref) (store.Image, error) {
	return store.Image{}, fmt.Errorf("%s: %w", ref, errdefs.ErrNotFound)
}

func (strictJobs) Stop(context.Context, digest.Digest, ...string) (int, error) { return 0, nil }

// strictMounts panics if a request that is not valid comes through.
type strictMounts struct{ admin.Mounts }

func (strictMounts) Prepare(_ context.Context, _ store.Image, _ remote.Ref, r wire.MountRequest) (wire.Mount, error) {
	if r.Dir != "" && !filepath.IsAbs(r.Dir) {
		panic("a directory that is not valid came through: " + r.Dir)
	}
	return wire.Mount{}, nil
}

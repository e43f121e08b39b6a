package remote_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func TestReadBlob(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	content := random(1000)
	d := u.putBlob(content)
	wrong := digest.FromString("wrong")
	u.Serve("/v2/org/model/blobs/"+wrong.String(), content)
	var fail atomic.Int64
	u.Before(func(w http.ResponseWriter, r *http.Request) bool {
		if fail.Add(-1) >= 0 {
			w.WriteHeader(503)
			return true
		}
		return false
	})
	a := u.repository(t, remote.Options{}, nil).Artifact(remote.Manifest{Bytes: []byte("{}")})
	if diff := cmp.Diff(a.Manifest(), []byte("{}")); diff != "" {
		t.Errorf("Manifest (-got +want):\n%s", diff)
	}
	fail.Store(2)
	got, err := a.ReadBlob(t.Context(), ocispec.Descriptor{Digest: d, Size: 1000}, 1000)
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	for _, tt := range []struct {
		name  string
		desc  ocispec.Descriptor
		limit int64
		is    func(error) bool
	}{
		{"above the limit", ocispec.Descriptor{Digest: d, Size: 1000}, 999, errdefs.IsInvalidArgument},
		{"negative", ocispec.Descriptor{Digest: d, Size: -1}, 999, errdefs.IsInvalidArgument},
		{"huge", ocispec.Descriptor{Digest: d, Size: 1 << 62}, 1 << 20, errdefs.IsInvalidArgument},
		{"wrong bytes", ocispec.Descriptor{Digest: wrong, Size: 1000}, 1000, errdefs.IsDataLoss},
		{"wrong size", ocispec.Descriptor{Digest: d, Size: 999}, 1000, errdefs.IsFailedPrecondition},
		{"missing", ocispec.Descriptor{Digest: digest.FromString("none"), Size: 9}, 1000, errdefs.IsNotFound},
	} {
		if _, err := a.ReadBlob(t.Context(), tt.desc, tt.limit); err == nil || !tt.is(err) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// tarOf returns a tar with n files of the given size.
func tarOf(t testing.TB, n, size int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range n {
		if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("f%03d", i), Size: int64(size), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(random(size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestBlobAt(t *testing.T) {
	t.Parallel()
	small, large := tarOf(t, 300, 2000), tarOf(t, 5, 2<<20)
	for _, tt := range []struct {
		name    string
		blob    []byte
		ranges  bool
		members int
		most    int // number of requests
	}{
		{"small files", small, true, 300, 6},
		{"large files", large, true, 5, 12},
		{"small files without ranges", small, false, 300, 2},
		{"large files without ranges", large, false, 5, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t)
			d := u.putBlob(tt.blob)
			if !tt.ranges {
				u.Before(func(w http.ResponseWriter, r *http.Request) bool {
					w.Header().Set("Content-Length", fmt.Sprint(len(tt.blob)))
					w.Write(tt.blob)
					return true
				})
			}
			a := u.repository(t, remote.Options{}, nil).Artifact(remote.Manifest{})
			r, err := a.BlobAt(t.Context(), ocispec.Descriptor{Digest: d, Size: int64(len(tt.blob))})
			if err != nil {
				t.Fatal(err)
			}
			defer r.(io.Closer).Close()
			members, err := filetable.TarIndex(r, int64(len(tt.blob)))
			if err != nil {
				t.Fatal(err)
			}
			if len(members) != tt.members {
				t.Errorf("%d members, want %d", len(members), tt.members)
			}
			if n := len(u.Requests()); n > tt.most {
				t.Errorf("%d requests, want at most %d", n, tt.most)
			}
		})
	}
}

func TestBlobAtReads(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	content := random(3 << 20)
	size := int64(len(content))
	d := u.putBlob(content)
	a := u.repository(t, remote.Options{}, nil).Artifact(remote.Manifest{})
	r, err := a.BlobAt(t.Context(), ocispec.Descriptor{Digest: d, Size: size})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range [][2]int64{{0, 10}, {size - 10, 10}, {1000, 2 << 20}, {5, 100}, {size - 10, 20}, {size, 1}, {1 << 40, 1}} {
		off, n := tt[0], tt[1]
		p := make([]byte, n)
		got, err := r.ReadAt(p, off)
		want := max(min(n, size-off), 0)
		if int64(got) != want || (err == io.EOF) != (want < n) || err != nil && err != io.EOF {
			t.Errorf("ReadAt(%d, %d) = %d, %v", off, n, got, err)
		}
		if want > 0 && !bytes.Equal(p[:got], content[off:off+int64(got)]) {
			t.Errorf("ReadAt(%d, %d): wrong bytes", off, n)
		}
	}
	if _, err := r.ReadAt(make([]byte, 1), -1); !errdefs.IsInvalidArgument(err) {
		t.Errorf("negative offset: %v", err)
	}
}

// TestBlobAtWithoutRanges checks that a server without ranges is read forward as one stream, and that a
// read that goes back is an error.
func TestBlobAtWithoutRanges(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	content := random(3 << 20)
	d := digest.FromBytes(content)
	u.Before(func(w http.ResponseWriter, r *http.Request) bool {
		w.Write(content)
		return true
	})
	a := u.repository(t, remote.Options{}, nil).Artifact(remote.Manifest{})
	r, err := a.BlobAt(t.Context(), ocispec.Descriptor{Digest: d, Size: int64(len(content))})
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 100)
	for _, off := range []int64{0, 1 << 20, 2 << 20, 2<<20 + 5} {
		if _, err := r.ReadAt(p, off); err != nil || !bytes.Equal(p, content[off:off+100]) {
			t.Errorf("ReadAt(%d): %v", off, err)
		}
	}
	if n := len(u.Requests()); n != 2 {
		t.Errorf("%d requests, want 2", n)
	}
	if _, err := r.ReadAt(p, 500_000); !errdefs.IsNotImplemented(err) {
		t.Errorf("a read that goes back: got %v, want ErrNotImplemented", err)
	}
}

func TestBlobAtTruncated(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	content := random(1 << 20)
	u.Before(func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		w.Write(content[:200_000])
		return true
	})
	a := u.repository(t, remote.Options{}, nil).Artifact(remote.Manifest{})
	r, err := a.BlobAt(t.Context(), ocispec.Descriptor{Digest: digest.FromBytes(content), Size: int64(len(content))})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.ReadAt(make([]byte, 100), 500_000); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a read beyond the end: got %v, want ErrUnexpectedEOF", err)
	}
}

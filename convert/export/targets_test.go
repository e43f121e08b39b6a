package export_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/ballast-dev/ballast/convert/layout"
	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/opencontainers/go-digest"
)

// A stoppedTarget is a layout whose writer is canceled when the first blob is opened, or late, when it is written.
type stoppedTarget struct {
	*layout.Layout
	cancel func()
	late   bool
	copied bool // a blob that was opened after cancel
}

func (s *stoppedTarget) Put(ctx context.Context, d digest.Digest, size int64, open export.Opener) error {
	err := s.Layout.Put(ctx, d, size, func(ctx context.Context) (io.ReadCloser, error) {
		if !s.late {
			s.cancel()
		}
		return open(ctx)
	})
	s.cancel()
	s.copied = s.copied || err == nil && !s.late
	return err
}

// TestCanceledCopy: files that were unpacked or compressed are not copied after the end of the context, and a layout
// that has all blobs then gets no tag.
func TestCanceledCopy(t *testing.T) {
	s, c := registrytest.New(t), client(t, remote.Credentials{})
	name := s.Add("m", "1", converttest.ModelPackTarGzip([]converttest.File{{Path: "model.gguf", Data: weights(1000), Mode: 0o644}}))
	for _, o := range []export.Options{{Form: export.FormModelPack}, {Compress: export.CompressSeekable}} {
		for _, late := range []bool{false, true} {
			ctx, cancel := context.WithCancel(t.Context())
			to := &stoppedTarget{Layout: toLayout(t, t.TempDir(), "1"), cancel: cancel, late: late}
			_, err := export.Run(ctx, fromServer(t, c, name), to, o)
			if p, named := to.Named(t.Context()); !errors.Is(err, context.Canceled) || to.copied || p != nil || named != nil {
				t.Errorf("%+v, late %v: %v; copied %v, tagged %q, %v", o, late, err, to.copied, p, named)
			}
		}
	}
}

// TestUploadAnsweredEarly: chunks have digests also if the registry answers an upload before it has read all bytes, as
// it may if it has got them from somebody else.
func TestUploadAnsweredEarly(t *testing.T) {
	from, to, c := registrytest.New(t), registrytest.New(t), client(t, remote.Credentials{})
	w := weights(64 << 20) // more than is sent ahead
	to.Before(func(rw http.ResponseWriter, r *http.Request) bool {
		early := r.Method == http.MethodPut && strings.Contains(r.URL.RawQuery, digest.FromBytes(w).Encoded())
		if early {
			to.PutBlob("out", w)
			rw.WriteHeader(http.StatusCreated)
		}
		return early
	})
	src := fromServer(t, c, from.Add("m", "1", converttest.ModelPackRaw(converttest.Files(w))))
	if _, err := export.Run(t.Context(), src, toServer(t, c, to.Host()+"/out:1"), export.Options{}); err != nil {
		t.Fatal(err)
	}
	for _, f := range fromServer(t, c, to.Host()+"/out:1").Model.Table.Files {
		if f.Size > 0 && len(f.Source.Chunks) == 0 {
			t.Errorf("%s has no chunks", f.Path)
		}
	}
}

package export_test

import (
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestOrder: an order is attached to the image that it is of, and the latest one is found, in registries with and
// without lists of referrers.
func TestOrder(t *testing.T) {
	b := converttest.ModelPackRaw(converttest.Files(weights(70_000)))
	for _, subject := range []bool{true, false} {
		s, c := registrytest.New(t), client(t, remote.Credentials{})
		s.Referrers = subject
		src := fromServer(t, c, s.Add("from/model", "v1", b))
		ref := s.Host() + "/ordered/model:v1"
		res, err := export.Run(t.Context(), src, toServer(t, c, ref), export.Options{TempDir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		repo, err := c.Repository(remote.Ref{Host: s.Host(), Repository: "ordered/model"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		check := func(want []filetable.Range) {
			t.Helper()
			p, err := repo.Attached(t.Context(), res.Digest, mediatype.Order, filetable.MaxOrderSize)
			if err != nil {
				t.Fatal(err)
			}
			o, err := filetable.ParseOrder(p)
			if diff := cmp.Diff(want, o.Ranges); err != nil || diff != "" {
				t.Errorf("attached: %v %s", err, diff)
			}
		}
		var want []filetable.Range
		manifest := ocispec.Descriptor{MediaType: res.MediaType, Digest: res.Digest, Size: int64(len(res.Manifest))}
		for range 3 {
			want = append(want, filetable.Range{Path: "model.gguf", Offset: int64(100 * len(want)), Size: 1})
			if err := export.AttachOrder(t.Context(), toServer(t, c, ref), manifest, filetable.Order{Ranges: want}); err != nil {
				t.Fatal(err)
			}
			check(want)
		}
		if _, err := repo.Attached(t.Context(), res.Digest, mediatype.Order, 10); !errdefs.IsInvalidArgument(err) {
			t.Errorf("more than the limit: %v", err)
		}
		if _, err := repo.Attached(t.Context(), src.Manifest, mediatype.Order, 10); !errdefs.IsNotFound(err) {
			t.Errorf("of an image without an order: %v", err)
		}
	}
}

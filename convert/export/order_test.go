package export_test

import (
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestOrder: an order is attached to the image that it is of, whose digest it does not change, and the latest one is found, in
// registries with and without lists of referrers. An order of another model is refused before anything is sent.
func TestOrder(t *testing.T) {
	b := converttest.ModelPackRaw(converttest.Files(weights(70_000)))
	for _, subject := range []bool{true, false} {
		s, c := newServer(t), client(t, remote.Credentials{})
		s.subject = subject
		src := fromServer(t, c, s.add("from/model", "v1", b))
		ref := s.host() + "/ordered/model:v1"
		run := func(ranges ...filetable.Range) (*export.Result, error) {
			return export.Run(t.Context(), src, toServer(t, c, ref), export.Options{TempDir: t.TempDir(), Order: filetable.Order{Ranges: ranges}})
		}
		if _, err := run(filetable.Range{Path: "elsewhere", Size: 1}); !errdefs.IsInvalidArgument(err) || s.manifest("ordered/model:v1") != nil {
			t.Errorf("an order of another model: %v", err)
		}
		plain, err := run()
		if err != nil {
			t.Fatal(err)
		}
		want := []filetable.Range{{Path: "model.gguf", Offset: 10, Size: 20}, {Path: "config.json", Size: 5}}
		res, err := run(append(want, filetable.Range{Path: "elsewhere", Size: 1})...)
		if err != nil {
			t.Fatal(err)
		}
		if res.Digest != plain.Digest {
			t.Errorf("the image is %s with an order, %s without", res.Digest, plain.Digest)
		}
		repo, err := c.Repository(remote.Ref{Host: s.host(), Repository: "ordered/model"}, nil)
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
		check(want)
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

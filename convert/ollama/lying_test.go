package ollama_test

import (
	"bytes"
	"context"
	"io"
	"maps"
	"slices"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A liar serves ranges with other bytes than those of the blobs.
type liar struct {
	*converttest.Artifact
	built *converttest.Built
	lie   func([]byte) []byte
}

func (l liar) BlobAt(_ context.Context, desc ocispec.Descriptor) (io.ReaderAt, error) {
	return bytes.NewReader(l.lie(l.built.Blobs[desc.Digest])), nil
}

// TestFalseRangesAreDetected has a mirror that serves another header in a range than in
// the blob, with everything else valid.
func TestFalseRangesAreDetected(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	m := converttest.OllamaTensors(converttest.TensorData, converttest.Tensors(10, 64))
	for _, tt := range []struct {
		name string
		lie  func([]byte) []byte
		ok   bool
	}{
		{"honest", func(p []byte) []byte { return p }, true},
		{"lying", func(p []byte) []byte { return bytes.Replace(p, []byte("\"BF16\""), []byte("\"I16\" "), 1) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			model, err := parsers.Parse(ctx, liar{converttest.NewArtifact(m.Built), m.Built, tt.lie})
			if err != nil {
				t.Fatal(err)
			}
			im, err := image.Build(model)
			if err != nil {
				t.Fatal(err)
			}
			s := storetest.Open(t, t.TempDir(), store.Options{})
			table, err := s.PutTable(im.Table)
			if err != nil {
				t.Fatal(err)
			}
			f := storetest.NewFetcher(slices.Collect(maps.Values(m.Blobs))...)
			err = s.Hydrate(ctx, table, store.HydrateOptions{Sources: storetest.From(f)})
			if tt.ok != (err == nil) || !tt.ok && !errdefs.IsDataLoss(err) {
				t.Errorf("got error %v", err)
			}
		})
	}
}

package resolve_test

import (
	"bytes"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/opencontainers/go-digest"
)

// aheadOf returns the image of a model, as an artifact.
func aheadOf(t *testing.T, m *convert.Model) *converttest.Built {
	t.Helper()
	im, err := image.Build(m)
	if err != nil {
		t.Fatal(err)
	}
	return &converttest.Built{Manifest: im.Manifest, Blobs: map[digest.Digest][]byte{im.ConfigDigest: im.Config, im.TableDigest: im.Table}}
}

func parse(t *testing.T, b *converttest.Built) *convert.Model {
	t.Helper()
	m, err := formats.All().Parse(t.Context(), converttest.NewArtifact(b))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestPreconvertedIsTheSame builds images again from images: of every format the bytes are the same.
func TestPreconvertedIsTheSame(t *testing.T) {
	t.Parallel()
	for _, b := range converttest.All(converttest.Files([]byte("GGUF and some weights"))) {
		t.Run(b.Name, func(t *testing.T) {
			ahead := aheadOf(t, parse(t, b))
			o, err := resolve.Local(remote.Ref{}, converttest.NewArtifact(ahead))
			if err != nil {
				t.Fatal(err)
			}
			p, err := o.Preconverted(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(p.Manifest, ahead.Manifest) || p.Extends {
				t.Errorf("built again (extends %v):\n%s\nwant\n%s", p.Extends, p.Manifest, ahead.Manifest)
			}
		})
	}
}

package convert_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/opencontainers/go-digest"
)

var parsers = formats.All()

// weights are larger than all headers that a parser may read.
func weights() []byte {
	r := rand.New(rand.NewPCG(1, 2))
	p := make([]byte, 64<<10)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	copy(p, "GGUF")
	return p
}

func TestFormats(t *testing.T) {
	t.Parallel()
	for _, b := range converttest.All(converttest.Files(weights())) {
		t.Run(b.Name, func(t *testing.T) {
			t.Parallel()
			converttest.TestParser(t, parsers.Parse, b)
		})
	}
}

func TestRawLayersShareDigest(t *testing.T) {
	t.Parallel()
	w := weights()
	want := digest.FromBytes(w)
	files := converttest.Files(w)
	for _, b := range []*converttest.Built{
		converttest.Ollama(files, converttest.OllamaConfigNew), converttest.DockerAIGGUF(files),
		converttest.DockerAIFiles(files), converttest.ModelPackRaw(files), converttest.CNAIWeightAlias(files),
	} {
		m, err := parsers.Parse(context.Background(), converttest.NewArtifact(b))
		if err != nil {
			t.Fatalf("%s: %v", b.Name, err)
		}
		found := false
		for _, f := range m.Table.Files {
			found = found || f.Path == "model.gguf" && f.Digest == want && f.Source.Blob == want
		}
		if !found {
			t.Errorf("%s: no model.gguf with digest %s", b.Name, want)
		}
	}
}

func TestWrongBlobIsNotParsed(t *testing.T) {
	t.Parallel()
	for _, b := range converttest.All(converttest.Files(weights())) {
		t.Run(b.Name, func(t *testing.T) {
			m, err := convert.ParseManifest(b.Manifest)
			if err != nil {
				t.Fatal(err)
			}
			if mediatype.Base(m.Config.MediaType) == mediatype.OCIEmpty {
				return // not read
			}
			b.Blobs[m.Config.Digest] = bytes.ReplaceAll(b.Blobs[m.Config.Digest], []byte(`"`), []byte(`'`))
			_, err = parsers.Parse(context.Background(), converttest.NewArtifact(b))
			if ve := (*verify.Error)(nil); !errors.As(err, &ve) {
				t.Fatalf("got %v, want a *verify.Error", err)
			}
		})
	}
}

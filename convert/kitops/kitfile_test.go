package kitops

import (
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestManyEntries has as many entries and layers as there can be: to look at all entries for each layer takes minutes.
func TestManyEntries(t *testing.T) {
	p := `{"docs":[` + strings.Repeat(`{"path":"a"},`, 250_000) + `{}]}` // of four tokens each
	k, err := parseKitfile([]byte(p))
	if err != nil {
		t.Fatal(err)
	}
	l := convert.Descriptor{Descriptor: ocispec.Descriptor{Digest: digest.FromString("layer")}}
	for range 100_000 {
		if e := k.entry("code", l); e.path != "" {
			t.Fatalf("code has the entry of %q", e.path)
		}
		if e := k.entry("docs", l); e.path != "a" {
			t.Fatalf("docs: got %q", e.path)
		}
	}
}

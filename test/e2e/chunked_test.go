package e2e

import (
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/google/go-cmp/cmp"
)

// TestChunkedLayers pulls models whose layers are eStargz and zstd:chunked. Every file has its
// content, and there are no others.
func TestChunkedLayers(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	files := converttest.Files(weights(95, 9<<20+5))
	for _, format := range converttest.ChunkedFormats {
		b := converttest.ModelPackChunked(files, format, 1<<20)
		ref := push(t, n, b)
		mustPull(t, n, "ballast", ref)
		wantFiles(t, n, ref, states(b))
	}
}

// TestConvertCompressed compresses a model ahead of time and pulls what came out.
func TestConvertCompressed(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	b := converttest.ModelPackRaw(converttest.Files(append(weights(96, 9<<20+5), make([]byte, 5<<20)...)))
	src := push(t, n, b)
	for _, how := range []string{"zstd-seekable", "zstd-chunked"} {
		dst := n.Registry.Ref("converted/"+how, "1")
		out := n.Ballast("convert", src, dst, "--compress", how)
		if out.Err != nil {
			t.Fatalf("ballast convert: %v\n%s", out.Err, out.Output())
		}
		mustPull(t, n, "ballast", dst)
		got, err := n.List("ballast", dst, "/")
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(states(b), got); d != "" {
			t.Errorf("%s: files (-want +got):\n%s", how, d)
		}
	}
}

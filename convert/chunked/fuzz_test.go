package chunked_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/ballast-dev/ballast/convert/chunked"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// fits checks that Files returns one of its documented errors, or files that are valid in a table.
func fits(t *testing.T, blob []byte, l chunked.Layer) {
	t.Helper()
	placed, err := chunked.Files(bytes.NewReader(blob), anyRoom, l, "", "a/b")
	if err != nil {
		if !errors.Is(err, chunked.ErrOpaque) && !errdefs.IsInvalidArgument(err) {
			t.Fatalf("an error without a category: %v", err)
		}
		return
	}
	for _, files := range placed {
		validate(t, l, files)
	}
}

// FuzzTOC checks tables of contents with correct digests.
func FuzzTOC(f *testing.F) {
	for name, toc := range opaqueTables {
		if len(toc) < 10<<10 {
			f.Add([]byte(toc), name != "")
		}
	}
	for _, toc := range refusedTables {
		f.Add([]byte(toc), false)
	}
	f.Add([]byte(table(file(""))), true)
	f.Fuzz(func(t *testing.T, toc []byte, stargz bool) {
		blob, annotations := handmade(string(toc))
		if stargz {
			annotations[mediatype.AnnotationTOCDigest] = digest.FromBytes(toc).String()
		}
		fits(t, blob, layerOf(blob, filetable.CodecZstd, annotations))
	})
}

// FuzzPosition checks annotations with the position of a table.
func FuzzPosition(f *testing.F) {
	blob, annotations := handmade(table(file("")))
	f.Add(annotations[mediatype.PodmanTOCPosition], annotations[mediatype.PodmanTOCChecksum], "")
	f.Add("-1:2:3:1", "sha256:x", "sha256:y")
	f.Add("9223372036854775807:1:1:1", annotations[mediatype.PodmanTOCChecksum], helloDigest.String())
	f.Fuzz(func(t *testing.T, position, checksum, toc string) {
		fits(t, blob, layerOf(blob, filetable.CodecZstd, map[string]string{
			mediatype.PodmanTOCPosition: position, mediatype.PodmanTOCChecksum: checksum, mediatype.AnnotationTOCDigest: toc,
		}))
	})
}

// FuzzFooter checks ends of layers whose annotation has the digest of a small table.
func FuzzFooter(f *testing.F) {
	toc := table(file(""))
	vouched := map[string]string{mediatype.AnnotationTOCDigest: digest.FromString(toc).String()}
	blob, _ := handmade(toc)
	f.Add(blob, false)
	plain := converttest.Tar(converttest.File{Path: "a", Data: []byte(hello)})
	for _, format := range converttest.ChunkedFormats {
		blob, _ := converttest.Chunked(format, plain, 4<<20)
		f.Add(blob, format == converttest.EStargz)
	}
	f.Add([]byte("GNUlInUx"), false)
	for _, end := range shortFooters {
		f.Add(append([]byte(end), make([]byte, 51-len(end))...), true)
	}
	f.Fuzz(func(t *testing.T, blob []byte, gzip bool) {
		c := filetable.CodecZstd
		if gzip {
			c = filetable.CodecGzip
		}
		fits(t, blob, layerOf(blob, c, vouched))
	})
}

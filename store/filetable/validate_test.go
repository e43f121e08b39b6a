package filetable

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// TestOverlappingChunks: the chunks of a blob name each of its bytes about once, so that a model of a few bytes does
// not have the blob fetched for each of them.
func TestOverlappingChunks(t *testing.T) {
	const files, size = 100, 1 << 20
	blob := Blob{Digest: digest.FromString("blob"), Size: size, Archive: ArchiveChunks}
	for name, tt := range map[string]struct {
		unit    int64
		content func(i int) string
		good    bool
	}{
		"beside each other":          {size / files, func(i int) string { return fmt.Sprint(i) }, true},
		"one file by several paths":  {size, func(int) string { return "x" }, true},
		"all in all bytes":           {size, func(i int) string { return fmt.Sprint(i) }, false},
		"some bytes more than twice": {3 * size / files, func(i int) string { return fmt.Sprint(i) }, false},
	} {
		table := Table{Version: Version, Origin: Origin{Format: "modelpack", Digest: digest.FromString("origin"), Mapping: 1}, Blobs: []Blob{blob}}
		for i := range files {
			at := min(int64(i)*(size/files), size-tt.unit)
			d := digest.FromString(tt.content(i))
			chunk := Chunk{Size: 1, Digest: d, At: at, Len: tt.unit}
			if tt.content(i) == "x" {
				chunk.At = 0
			}
			table.Files = append(table.Files, File{Path: fmt.Sprintf("%03d", i), Type: TypeReg, Mode: 0o644, Size: 1, Digest: d, Source: &Source{Blob: blob.Digest, Codec: CodecZstd, Chunks: []Chunk{chunk}}})
		}
		if err := table.Validate(); (err == nil) != tt.good || err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOneSizeOfADigest: a digest has one size, whether it is that of files or of a blob.
func TestOneSizeOfADigest(t *testing.T) {
	blob, d := Blob{Digest: digest.FromString("blob"), Size: 100, Archive: ArchiveChunks}, digest.FromString("file")
	for name, tt := range map[string]struct {
		sizes [2]int64
		raw   int64 // size of a blob with this digest; 0: none
		good  bool
	}{
		"the same":           {[2]int64{10, 10}, 0, true},
		"the same as a blob": {[2]int64{10, 10}, 10, true},
		"two files":          {[2]int64{10, 20}, 0, false},
		"files and a blob":   {[2]int64{10, 10}, 20, false},
	} {
		table := Table{Version: Version, Origin: Origin{Format: "modelpack", Digest: digest.FromString("origin"), Mapping: 1}, Blobs: []Blob{blob}}
		if tt.raw > 0 {
			table.Blobs = append(table.Blobs, Blob{Digest: d, Size: tt.raw})
		}
		for i, n := range tt.sizes {
			source := &Source{Blob: blob.Digest, Chunks: []Chunk{{Size: n, Digest: digest.FromString(fmt.Sprint("chunk ", n)), Len: n}}}
			table.Files = append(table.Files, File{Path: fmt.Sprint(i), Type: TypeReg, Mode: 0o644, Size: n, Digest: d, Source: source})
		}
		if err := table.Validate(); (err == nil) != tt.good || err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDecodeMemory: an encoded table that is none costs no multiple of its size.
func TestDecodeMemory(t *testing.T) {
	const n = 5_000_000
	repeat := func(s string, n int) string { return strings.TrimSuffix(strings.Repeat(s+",", n), ",") }
	file := `{"path":"a","type":"reg","source":{%s}}`
	for name, text := range map[string]string{
		"files":   `{"files":[` + repeat("{}", n) + `]}`,
		"blobs":   `{"blobs":[` + repeat("{}", n) + `]}`,
		"unpacks": `{"unpacks":[` + repeat("{}", n) + `]}`,
		"nothing": `{"files":[` + repeat("null", n) + `]}`,
		"chunks":  `{"files":[` + fmt.Sprintf(file, `"chunks":[`+repeat("{}", n)+`]`) + `]}`,
		"parts":   `{"files":[` + fmt.Sprintf(file, `"parts":[`+repeat("{}", n)+`]`) + `]}`,
		"sources": `{"files":[` + repeat(`{"source":{"parts":[{},{},{},{},{},{}]}}`, 300_000) + `]}`,
		"numbers": `{"files":[` + repeat("0", 200_000) + `]}`,
		"strings": `{"blobs":[{},` + repeat(`""`, 200_000) + `]}`,
		"lists":   `{"unpacks":[ ` + repeat("[]", 200_000) + `]}`,
		"truths":  `{"files":[` + fmt.Sprintf(file, `"parts":[{"chunks":[`+repeat("true", 200_000)+`]}]`) + `]}`,
		"depth":   `{"a":` + strings.Repeat("[{\"a\":", 200_000),
		"escapes": `{"files":[{"path":"\\\""},` + repeat("{}", n) + `]}`,
	} {
		p := []byte(text)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := Decode(p); !errdefs.IsInvalidArgument(err) || len(p) > MaxSize {
			t.Errorf("%s: %d bytes: %v", name, len(p), err)
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
			t.Errorf("%s: %d MiB are allocated for %d MiB", name, n>>20, len(p)>>20)
		}
	}
}

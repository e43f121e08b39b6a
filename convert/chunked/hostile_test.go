package chunked_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/chunked"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
)

// hello is the content of the only chunk of a handmade layer, at offset 0.
const hello = "hello, world"

var helloDigest = digest.FromString(hello)

// handmade returns a layer of Podman's kind with the given table of contents.
func handmade(toc string) ([]byte, map[string]string) {
	return handmadeFrom([]byte(toc), converttest.Compress([]byte(toc), filetable.CodecZstd))
}

func handmadeFrom(toc, compressed []byte) ([]byte, map[string]string) {
	b := converttest.Compress([]byte(hello), filetable.CodecZstd)
	skippable := func(p []byte) {
		b = append(b, 0x50, 0x2a, 0x4d, 0x18)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(p)))
		b = append(b, p...)
	}
	off := len(b) + 8
	skippable(compressed)
	var footer []byte
	for _, n := range []int{off, len(compressed), len(toc), 1, 0, 0, 0} {
		footer = binary.LittleEndian.AppendUint64(footer, uint64(n))
	}
	skippable(append(footer, "GNUlInUx"...))
	return b, map[string]string{
		mediatype.PodmanTOCPosition: fmt.Sprintf("%d:%d:%d:1", off, len(compressed), len(toc)),
		mediatype.PodmanTOCChecksum: digest.FromBytes(compressed).String(),
	}
}

// table returns a table of contents with entries, given without their brackets.
func table(entries string) string { return `{"version":1,"entries":[` + entries + `]}` }

// file returns an entry of a file of hello, with additional fields.
func file(more string) string {
	return fmt.Sprintf(`{"type":"reg","name":"a","size":%d,"digest":"%s","offset":0,"endOffset":25%s}`, len(hello), helloDigest, more)
}

func TestChunksOfPodmanTable(t *testing.T) {
	blob, annotations := handmade(table(file("")))
	l := layerOf(blob, filetable.CodecZstd, annotations)
	files, err := chunked.Files(bytes.NewReader(blob), anyRoom, l, "")
	if err != nil {
		t.Fatal(err)
	}
	want := []filetable.Chunk{{Size: int64(len(hello)), Digest: helloDigest, Len: 25}}
	if d := cmp.Diff(want, files[0][0].Source.Chunks); d != "" {
		t.Errorf("chunks (-want +got):\n%s", d)
	}
}

// TestTableWindow reads small tables of contents that declare the windows of other writers.
func TestTableWindow(t *testing.T) {
	toc := []byte(table(file("")))
	for _, window := range []int{8 << 20, 32 << 20, filetable.MaxWindow} {
		var compressed bytes.Buffer
		w, err := zstd.NewWriter(&compressed, zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range [][]byte{toc[:1], toc[1:]} {
			if _, err := w.Write(p); err != nil {
				t.Fatal(err)
			}
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		blob, annotations := handmadeFrom(toc, compressed.Bytes())
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err = chunked.Files(bytes.NewReader(blob), anyRoom, layerOf(blob, filetable.CodecZstd, annotations), "")
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; err != nil || n > 4<<20 {
			t.Errorf("window of %d MiB: %v, %d MiB of memory for a table of %d bytes", window>>20, err, n>>20, len(toc))
		}
	}
}

// opaqueTables are tables of contents that are not used.
var opaqueTables = map[string]string{
	"empty":                "",
	"not JSON":             "]",
	"a list":               "[]",
	"null":                 "null",
	"no version":           `{"entries":[]}`,
	"no entries":           `{"version":1}`,
	"version 2":            `{"version":2,"entries":[]}`,
	"version as text":      `{"version":"1","entries":[]}`,
	"entries twice":        `{"version":1,"entries":[],"entries":[]}`,
	"entries null":         `{"version":1,"entries":null}`,
	"entries an object":    `{"version":1,"entries":{}}`,
	"trailing data":        table("") + "{}",
	"cut off":              table(file(""))[:60],
	"entry a number":       table("1"),
	"size a text":          table(`{"type":"reg","name":"a","size":"1"}`),
	"deep":                 `{"version":1,"x":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `,"entries":[]}`,
	"too many entries":     table(strings.Repeat(`{},`, 300_000) + "{}"),
	"negative size":        table(`{"type":"reg","name":"a","size":-1}`),
	"no digest":            table(`{"type":"reg","name":"a","size":12}`),
	"digest of sha512":     table(`{"type":"reg","name":"a","size":12,"digest":"sha512:00"}`),
	"digest a path":        table(`{"type":"reg","name":"a","size":12,"digest":"sha256:../../x"}`),
	"size beyond a chunk":  table(`{"type":"reg","name":"a","size":4194305,"digest":"` + helloDigest.String() + `"}`),
	"end before start":     table(file(`,"offset":20,"endOffset":10`)),
	"end beyond":           table(file(`,"endOffset":1000000`)),
	"end in the table":     table(file(`,"endOffset":26`)),
	"offset negative":      table(file(`,"offset":-1`)),
	"offset beyond":        table(file(`,"offset":1000000,"endOffset":0`)),
	"offset huge":          table(file(`,"offset":9223372036854775807,"endOffset":0`)),
	"inner offset":         table(file(`,"innerOffset":1`)),
	"chunk type":           table(file(`,"chunkType":"holes"`)),
	"chunk alone":          table(`{"type":"chunk","name":"a"}`),
	"chunk of a directory": table(`{"type":"dir","name":"a"},{"type":"chunk","name":"a"}`),
	"chunk of another":     table(file("") + `,{"type":"chunk","name":"b"}`),
	"chunk of an empty":    table(`{"type":"reg","name":"a"},{"type":"chunk","name":"a"}`),
	"chunks overlap":       table(file(`,"chunkSize":8`) + `,{"type":"chunk","name":"a","chunkOffset":7,"chunkSize":5,"offset":5}`),
	"chunks with a gap":    table(file(`,"chunkSize":8`) + `,{"type":"chunk","name":"a","chunkOffset":9,"chunkSize":3,"offset":5}`),
	"chunks too short":     table(file(`,"chunkSize":8,"chunkDigest":"`+helloDigest.String()+`"`) + `,{"type":"chunk","name":"a","chunkOffset":8,"chunkSize":3,"offset":5,"chunkDigest":"` + helloDigest.String() + `"}`),
	"chunks too long":      table(file(`,"chunkSize":8`) + `,{"type":"chunk","name":"a","chunkOffset":8,"chunkSize":9223372036854775807,"offset":5}`),
	"chunk negative":       table(file(`,"chunkSize":-8`)),
	"chunks without sums":  table(file(`,"chunkSize":8`) + `,{"type":"chunk","name":"a","chunkOffset":8,"chunkSize":4,"offset":5}`),
	"chunks backwards":     table(file(`,"chunkSize":8,"offset":9,"chunkDigest":"`+helloDigest.String()+`"`) + `,{"type":"chunk","name":"a","chunkOffset":8,"offset":5,"chunkDigest":"` + helloDigest.String() + `"}`),
	"8 EiB of zeros":       table(`{"type":"reg","name":"a","size":9223372036854775807,"chunkType":"zeros","digest":"` + helloDigest.String() + `"}`),
	"invalid time":         table(file(`,"modtime":"yesterday"`)),
	"many links to chunks": table(`{"type":"reg","name":"a","size":419430400000,"chunkType":"zeros","digest":"` + helloDigest.String() + `"},` +
		`{"type":"hardlink","name":"b","linkName":"a"},{"type":"hardlink","name":"c","linkName":"a"}`),
}

// refusedTables list files that a model must not contain.
var refusedTables = map[string]string{
	"device":         table(`{"type":"char","name":"null"}`),
	"fifo":           table(`{"type":"fifo","name":"a"}`),
	"unknown":        table(`{"type":"whiteout","name":"a"}`),
	"no type":        table(`{"name":"a"}`),
	"null entry":     table(`null`),
	"absolute":       table(`{"type":"dir","name":"/a"}`),
	"leaves":         table(`{"type":"reg","name":"a/../../b"}`),
	"empty name":     table(`{"type":"reg","name":""}`),
	"a root file":    table(`{"type":"reg","name":"."}`),
	"NUL":            table(`{"type":"reg","name":"a\u0000b"}`),
	"long":           table(`{"type":"reg","name":"` + strings.Repeat("a/", 3000) + `a"}`),
	"link to later":  table(`{"type":"hardlink","name":"b","linkName":"a"},{"type":"reg","name":"a"}`),
	"link to dir":    table(`{"type":"dir","name":"a"},{"type":"hardlink","name":"b","linkName":"a"}`),
	"link outside":   table(`{"type":"hardlink","name":"b","linkName":"../a"}`),
	"link to itself": table(`{"type":"hardlink","name":"b","linkName":"b"}`),
}

func TestHostileTables(t *testing.T) {
	for name, toc := range opaqueTables {
		blob, annotations := handmade(toc)
		if _, err := chunked.Files(bytes.NewReader(blob), anyRoom, layerOf(blob, filetable.CodecZstd, annotations), ""); !isOpaque(err) {
			t.Errorf("%s: got %v, want ErrOpaque", name, err)
		}
	}
	for name, toc := range refusedTables {
		blob, annotations := handmade(toc)
		if _, err := chunked.Files(bytes.NewReader(blob), anyRoom, layerOf(blob, filetable.CodecZstd, annotations), ""); !errdefs.IsInvalidArgument(err) || isOpaque(err) {
			t.Errorf("%s: got %v, want ErrInvalidArgument", name, err)
		}
	}
}

// A table without a digest in the manifest is not used.
func TestTableWithoutDigestIsUnused(t *testing.T) {
	blob, annotations := handmade(table(file("")))
	position, checksum := annotations[mediatype.PodmanTOCPosition], annotations[mediatype.PodmanTOCChecksum]
	for name, a := range map[string]map[string]string{
		"nothing":          nil,
		"a place":          {mediatype.PodmanTOCPosition: position},
		"a checksum alone": {mediatype.PodmanTOCChecksum: checksum}, // useless without a position
		"no digest":        {mediatype.PodmanTOCPosition: position, mediatype.PodmanTOCChecksum: "yes"},
		"sha512":           {mediatype.PodmanTOCPosition: position, mediatype.PodmanTOCChecksum: "sha512:" + strings.Repeat("0", 128)},
		"empty digest":     {mediatype.AnnotationTOCDigest: ""},
		"bad digest":       {mediatype.AnnotationTOCDigest: "sha256:../../x"},
	} {
		l := layerOf(blob, filetable.CodecZstd, a)
		if chunked.Announced(l) {
			t.Errorf("%s: announced", name)
		}
		if _, err := chunked.Files(failing{}, anyRoom, l, ""); !isOpaque(err) {
			t.Errorf("%s: got %v, want ErrOpaque without a read", name, err)
		}
	}
}

// failing is a server that returns errors.
type failing struct{}

func (failing) ReadAt([]byte, int64) (int, error) { return 0, errUnplugged }

var errUnplugged = errors.New("unplugged")

func TestHostilePlaces(t *testing.T) {
	blob, annotations := handmade(table(file("")))
	var off, size, plain int
	if _, err := fmt.Sscanf(annotations[mediatype.PodmanTOCPosition], "%d:%d:%d:1", &off, &size, &plain); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{
		"x", ":::", "1:2:3", "-1:2:3:1", "1:2:3:1:1", strings.Repeat("1", 1000),
		"18446744073709551615:1:1:1", "9223372036854775807:9223372036854775807:1:1",
		fmt.Sprintf("%d:%d:%d:2", off, size, plain),      // another type
		fmt.Sprintf("%d:%d:%d:1", off+1, size, plain),    // another position
		fmt.Sprintf("%d:%d:%d:1", off, size-1, plain),    // cut off
		fmt.Sprintf("%d:%d:%d:1", off, size, plain-1),    // too small
		fmt.Sprintf("%d:%d:%d:1", off, 17<<20, plain),    // too large
		fmt.Sprintf("%d:%d:%d:1", off, size, 65<<20),     // too large
		fmt.Sprintf("%d:%d:%d:1", off, len(blob), plain), // beyond the end
		fmt.Sprintf("0:%d:%d:1", size, plain), fmt.Sprintf("%d:0:%d:1", off, plain), fmt.Sprintf("%d:%d:0:1", off, size),
	} {
		a := maps.Clone(annotations)
		a[mediatype.PodmanTOCPosition] = s
		if _, err := chunked.Files(bytes.NewReader(blob), anyRoom, layerOf(blob, filetable.CodecZstd, a), ""); !isOpaque(err) {
			t.Errorf("%.60s: got %v, want ErrOpaque", s, err)
		}
	}
}

// TestWrongAnnotations checks layers whose annotations and bytes contradict each other.
func TestWrongAnnotations(t *testing.T) {
	plain := aTar(t)
	other := digest.FromString("another").String()
	for _, format := range converttest.ChunkedFormats {
		blob, annotations := converttest.Chunked(format, plain, 32<<10)
		for _, key := range []string{mediatype.AnnotationTOCDigest, mediatype.StargzTOCChecksum, mediatype.PodmanTOCChecksum} {
			if annotations[key] == "" {
				continue
			}
			a := maps.Clone(annotations)
			a[key] = other
			if _, err := chunked.Files(bytes.NewReader(blob), anyRoom, layerOf(blob, format.Codec(), a), ""); !isOpaque(err) {
				t.Errorf("%s: another %s: got %v, want ErrOpaque", format, key, err)
			}
		}
		l := layerOf(blob, format.Codec(), annotations)
		if _, err := chunked.Files(failing{}, anyRoom, l, ""); !errors.Is(err, errUnplugged) || isOpaque(err) {
			t.Errorf("%s: got %v, want the error of the server", format, err)
		}
		if _, err := chunked.Files(bytes.NewReader(blob[:100]), anyRoom, l, ""); err == nil {
			t.Errorf("%s: read from a blob that is cut off", format)
		}
		// Any wrong byte in what is read is detected.
		for at := len(blob) - 200; at > len(blob)-2000 && at > 0; at -= 97 {
			bad := bytes.Clone(blob)
			bad[at] ^= 0x40
			files, err := chunked.Files(bytes.NewReader(bad), anyRoom, l, "")
			good, _ := chunked.Files(bytes.NewReader(blob), anyRoom, l, "")
			if err == nil && cmp.Diff(good, files) != "" {
				t.Errorf("%s: byte %d: other files", format, at)
			}
		}
	}
}

// TestLargeTables checks that a table has a limit also when it is uncompressed.
func TestLargeTables(t *testing.T) {
	toc := []byte(table(strings.Repeat(" ", 65<<20)))
	compressed := converttest.Compress(toc, filetable.CodecZstd)
	blob, annotations := handmadeFrom(toc[:1000], compressed)
	if _, err := chunked.Files(bytes.NewReader(blob), anyRoom, layerOf(blob, filetable.CodecZstd, annotations), ""); !isOpaque(err) {
		t.Errorf("zstd: got %v, want ErrOpaque", err)
	}
	gz := converttest.Compress(converttest.Tar(converttest.File{Path: "stargz.index.json", Data: toc}), filetable.CodecGzip)
	blob = append([]byte("xxxx"), gz...)
	blob = append(blob, 0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 255, 26, 0, 'S', 'G', 22, 0)
	blob = fmt.Appendf(blob, "%016xSTARGZ\x01\x00\x00\xff\xff\x00\x00\x00\x00\x00\x00\x00\x00", 4)
	l := layerOf(blob, filetable.CodecGzip, map[string]string{mediatype.AnnotationTOCDigest: digest.FromBytes(toc).String()})
	if _, err := chunked.Files(bytes.NewReader(blob), anyRoom, l, ""); !isOpaque(err) {
		t.Errorf("gzip: got %v, want ErrOpaque", err)
	}
}

// shortFooters are ends of layers, each as long as the footer of eStargz, whose extra field is none of it.
var shortFooters = map[string]string{
	"no field":        "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff",
	"an empty field":  "\x1f\x8b\x08\x04\x00\x00\x00\x00\x00\xff\x00\x00",
	"a short field":   "\x1f\x8b\x08\x04\x00\x00\x00\x00\x00\xff\x04\x00SG\x16\x00",
	"digits alone":    "\x1f\x8b\x08\x04\x00\x00\x00\x00\x00\xff\x14\x00SG\x16\x000000000000000004",
	"a negative sign": "\x1f\x8b\x08\x04\x00\x00\x00\x00\x00\xff\x1a\x00SG\x16\x00-000000000000004STARGZ",
	"a long field":    "\x1f\x8b\x08\x04\x00\x00\x00\x00\x00\xff\x1b\x00SG\x16\x000000000000000004STARGZ",
}

// TestShortFooters checks footers of eStargz that are not complete.
func TestShortFooters(t *testing.T) {
	vouched := map[string]string{mediatype.AnnotationTOCDigest: helloDigest.String()}
	for name, f := range shortFooters {
		for _, blob := range [][]byte{append([]byte(f), make([]byte, 51-len(f))...), []byte(f)} {
			if _, err := chunked.Files(bytes.NewReader(blob), anyRoom, layerOf(blob, filetable.CodecGzip, vouched), ""); !isOpaque(err) {
				t.Errorf("%s, %d bytes: got %v, want ErrOpaque", name, len(blob), err)
			}
		}
	}
}

// TestWithoutRanges checks that a layer is unpacked as a whole if the server has no ranges.
func TestWithoutRanges(t *testing.T) {
	blob, annotations := handmade(table(file("")))
	r := refusing{bytes.NewReader(blob)}
	if _, err := chunked.Files(r, anyRoom, layerOf(blob, filetable.CodecZstd, annotations), ""); !isOpaque(err) {
		t.Errorf("got %v, want ErrOpaque", err)
	}
}

// refusing is a server without ranges.
type refusing struct{ io.ReaderAt }

func (refusing) ReadAt([]byte, int64) (int, error) {
	return 0, fmt.Errorf("ranges: %w", errdefs.ErrNotImplemented)
}

func anyRoom(int64) error { return nil }

// TestRoom checks that memory for a table of contents is reserved before it is read.
func TestRoom(t *testing.T) {
	pad := converttest.File{Path: strings.Repeat("a", 200), Data: []byte(hello)}
	for _, format := range converttest.ChunkedFormats {
		blob, annotations := converttest.Chunked(format, converttest.Tar(pad), 32<<10)
		l := layerOf(blob, format.Codec(), annotations)
		var asked []int64
		if _, err := chunked.Files(bytes.NewReader(blob), func(n int64) error { asked = append(asked, n); return nil }, l, ""); err != nil {
			t.Fatal(err)
		}
		if len(asked) != 2 || asked[0] > int64(len(blob)) || asked[1] < 3*200 {
			t.Errorf("%s: asked for %d bytes", format, asked)
		}
		full := errors.New("no memory")
		for n := range 2 {
			_, err := chunked.Files(bytes.NewReader(blob), func(int64) error {
				if n--; n < 0 {
					return full
				}
				return nil
			}, l, "")
			if !errors.Is(err, full) || isOpaque(err) {
				t.Errorf("%s: got %v, want the error of the room", format, err)
			}
		}
	}
}

// TestLongValues checks that a value that no table needs is not kept in memory.
func TestLongValues(t *testing.T) {
	for name, toc := range map[string]string{
		"unknown": `{"x":"` + strings.Repeat("a", 4<<20) + `","version":1,"entries":[]}`,
		"entry":   table(file(`,"x":"` + strings.Repeat("a", 4<<20) + `"`)),
	} {
		blob, annotations := handmade(toc)
		_, err := chunked.Files(bytes.NewReader(blob), anyRoom, layerOf(blob, filetable.CodecZstd, annotations), "")
		if !isOpaque(err) || !strings.Contains(fmt.Sprint(err), "a value of more than") {
			t.Errorf("%s: got %.200v, want ErrOpaque", name, err)
		}
	}
}

// TestManyMembers checks that a table with more files than a model may have is not read to its end.
func TestManyMembers(t *testing.T) {
	var b strings.Builder
	for i := range chunked.MaxMembers + 1 {
		fmt.Fprintf(&b, `{"type":"reg","name":"%d"},`, i)
	}
	blob, annotations := handmade(table(b.String() + "what is not JSON"))
	_, err := chunked.Files(bytes.NewReader(blob), anyRoom, layerOf(blob, filetable.CodecZstd, annotations), "")
	if !isOpaque(err) || !strings.Contains(fmt.Sprint(err), "files") {
		t.Errorf("got %v, want ErrOpaque", err)
	}
}

// TestManyPaths checks that the files of a layer are limited at all its paths together.
func TestManyPaths(t *testing.T) {
	var b strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&b, `{"type":"reg","name":"%d"},`, i)
	}
	blob, annotations := handmade(table(strings.TrimSuffix(b.String(), ",")))
	l := layerOf(blob, filetable.CodecZstd, annotations)
	as := make([]string, chunked.MaxMembers/1000+1)
	if _, err := chunked.Files(bytes.NewReader(blob), anyRoom, l, as...); !isOpaque(err) {
		t.Errorf("%d paths: got %v, want ErrOpaque", len(as), err)
	}
	if files, err := chunked.Files(bytes.NewReader(blob), anyRoom, l, as[1:]...); err != nil || len(files) != len(as)-1 {
		t.Errorf("%d paths: %d lists, %v", len(as)-1, len(files), err)
	}
}

package zipdir_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/carton/zipdir"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
)

func anyRoom(int64) error { return nil }

// content returns the content of an entry of p.
func content(p []byte, e *zipdir.Entry) ([]byte, error) {
	r, err := zipdir.Open(context.Background(), io.NopCloser(bytes.NewReader(p[e.Start():][:e.Span()])), e)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// readAll reads a whole archive.
func readAll(p []byte) (map[string]string, error) {
	entries, err := zipdir.Read(bytes.NewReader(p), int64(len(p)), anyRoom)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for i := range entries {
		e := &entries[i]
		c, err := content(p, e)
		if err != nil {
			return nil, err
		}
		all[e.Name] = e.Type + " " + string(c)
	}
	return all, nil
}

// oracle reads an archive with archive/zip.
func oracle(p []byte) (map[string]string, error) {
	zr, err := zip.NewReader(bytes.NewReader(p), int64(len(p)))
	if err != nil {
		return nil, err
	}
	zr.RegisterDecompressor(zipdir.Zstd, zstd.ZipDecompressor())
	all := map[string]string{}
	for _, f := range zr.File {
		typ := filetable.TypeReg
		switch {
		case strings.HasSuffix(f.Name, "/"):
			typ = filetable.TypeDir
		case f.ExternalAttrs>>16&0o170000 == 0o120000:
			typ = filetable.TypeSymlink
		}
		r, err := f.Open()
		if err != nil {
			return nil, err
		}
		c, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		all[strings.TrimSuffix(f.Name, "/")] = typ + " " + string(c)
	}
	return all, nil
}

type entry = converttest.ZipEntry

func good() map[string]converttest.Zip {
	text := bytes.Repeat([]byte("the same line again\n"), 500)
	entries := []entry{
		{Name: "stored", Data: []byte("12345"), Mode: 0o104755},
		{Name: "empty"},
		{Name: "dir/", Mode: 0o040755},
		{Name: "dir/deflate", Data: text, Method: 8},
		{Name: "dir/zstd", Data: text, Method: 93},
		{Name: "dir/tiny", Data: []byte{1}, Method: 93},
		{Name: "dir/link", Data: []byte("zstd"), Mode: 0o120777},
		{Name: "descriptor", Data: text, Method: 8, Descriptor: true},
		{Name: "descriptor64", Data: text, Method: 8, Descriptor: true, Zip64: true},
		{Name: "descriptor and size", Data: text, Method: 8, Descriptor: true, Local: func(h *converttest.ZipHeader) { h.Size = uint64(len(text)) }},
		{Name: "descriptor without signature", Data: []byte("12345"), Local: descriptorFlag, Central: descriptorFlag, After: []byte("\x1c\x3a\xf5\xcb\x05\x00\x00\x00\x05\x00\x00\x00")},
		{Name: "zip64", Data: text, Method: 93, Zip64: true},
		{Name: "näme=x", Data: []byte("ä")},
		{Name: "aligned", Data: []byte("page"), Local: func(h *converttest.ZipHeader) { h.Extra = append([]byte{0x35, 0xd9, 96, 0}, make([]byte, 96)...) }},
	}
	var many []entry
	for i := range 3000 {
		many = append(many, entry{Name: fmt.Sprintf("some/directory/file-%04d", i), Data: []byte{byte(i)}})
	}
	return map[string]converttest.Zip{
		"empty":        {},
		"mixed":        {Entries: entries},
		"zip64":        {Entries: entries, Zip64: true},
		"comment":      {Entries: entries, Comment: bytes.Repeat([]byte("x"), math.MaxUint16)},
		"comment64":    {Entries: entries, Comment: bytes.Repeat([]byte("x"), math.MaxUint16), Zip64: true},
		"many":         {Entries: many},
		"zstd skips":   {Entries: []entry{{Name: "a", Data: text, Method: 93, Packed: append([]byte{0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3}, converttest.Zstd(text)...)}}},
		"inner as zip": {Entries: []entry{{Name: "a.zip", Data: converttest.Zip{Entries: entries}.Bytes()}}},
	}
}

// TestContentEqualsStandardLibrary compares the content of unambiguous archives with that read by
// archive/zip.
func TestContentEqualsStandardLibrary(t *testing.T) {
	for name, z := range good() {
		t.Run(name, func(t *testing.T) {
			p := z.Bytes()
			got, err := readAll(p)
			if err != nil {
				t.Fatal(err)
			}
			want, err := oracle(p)
			if err != nil {
				t.Fatal(err)
			}
			if len(want) != len(z.Entries) {
				t.Fatalf("the standard library sees %d of %d entries", len(want), len(z.Entries))
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("content (-want +got):\n%s", d)
			}
		})
	}
}

func one(e entry) converttest.Zip { return converttest.Zip{Entries: []entry{e}} }

func named(names ...string) converttest.Zip {
	var z converttest.Zip
	for _, n := range names {
		z.Entries = append(z.Entries, entry{Name: n})
	}
	return z
}

func local(f func(*converttest.ZipHeader)) converttest.Zip {
	return one(entry{Name: "a", Data: []byte("12345"), Local: f})
}

func central(f func(*converttest.ZipHeader)) converttest.Zip {
	return one(entry{Name: "a", Data: []byte("12345"), Central: f})
}

func both(f func(*converttest.ZipHeader)) converttest.Zip {
	return one(entry{Name: "a", Data: []byte("12345"), Central: f, Local: f})
}

func descriptorFlag(h *header) { h.Flags = 1 << 3 }

// descriptor returns an archive with the bytes of a data descriptor.
func descriptor(p []byte) converttest.Zip {
	return one(entry{Name: "a", Data: []byte("12345"), Local: descriptorFlag, Central: descriptorFlag, After: p})
}

func withEnd(zip64 bool, f func(*converttest.ZipEnd)) converttest.Zip {
	return converttest.Zip{Entries: []entry{{Name: "a", Data: []byte("12345")}}, Zip64: zip64, End: f}
}

type header = converttest.ZipHeader
type end = converttest.ZipEnd

// hostile returns archives that Read or Open refuses, with a part of the error.
func hostile() map[string]struct {
	zip  converttest.Zip
	want string
} {
	a := entry{Name: "a", Data: []byte("12345")}
	text := bytes.Repeat([]byte("x"), 10_000)
	inner := converttest.Zip{Entries: []entry{{Name: "evil"}}}.Bytes()
	unicodePath := append([]byte{0x75, 0x70, 6, 0, 1, 0x43, 0xbe, 0xb7, 0xe8}, 'b') // crc32("a")
	type c = struct {
		zip  converttest.Zip
		want string
	}
	return map[string]c{
		"bytes before the first entry":      {converttest.Zip{Entries: []entry{a}, Before: []byte("MZ")}, "before the first entry"},
		"bytes before an empty archive":     {converttest.Zip{Before: []byte("MZ")}, "before the first entry"},
		"bytes after the end":               {converttest.Zip{Entries: []entry{a}, After: []byte("x")}, "after the end"},
		"two ends":                          {converttest.Zip{Entries: []entry{a}, Comment: inner}, "two ends"},
		"comment with a broken end":         {converttest.Zip{Entries: []entry{a}, Comment: append([]byte("PK\x05\x06"), make([]byte, 30)...)}, "looks like an end"},
		"descriptor and another size":       {one(entry{Name: "a", Data: text, Method: 8, Descriptor: true, Local: func(h *header) { h.Size = 1 }}), "sizes"},
		"bytes between entries":             {converttest.Zip{Entries: []entry{{Name: "a", After: []byte("hidden")}, {Name: "b"}}}, "belong to no entry"},
		"many bytes between entries":        {converttest.Zip{Entries: []entry{{Name: "a", After: make([]byte, 1<<20)}, {Name: "b"}}}, "belong to no entry"},
		"bytes before the directory":        {converttest.Zip{Entries: []entry{{Name: "a", After: []byte("hidden")}}}, "belong to no entry"},
		"descriptor of odd size":            {one(entry{Name: "a", Data: text, Method: 8, Descriptor: true, After: []byte("x")}), "not a data descriptor"},
		"descriptor of zeros":               {descriptor(make([]byte, 16)), "data descriptor differs"},
		"descriptor of zeros in zip64":      {descriptor(make([]byte, 24)), "data descriptor differs"},
		"descriptor of zeros, no signature": {descriptor(make([]byte, 12)), "data descriptor differs"},
		"descriptor with another size":      {descriptor([]byte("PK\x07\x08\x1c\x3a\xf5\xcb\x05\x00\x00\x00\x06\x00\x00\x00")), "data descriptor differs"},
		"the same data twice":               {converttest.Zip{Entries: []entry{a, {Name: "b", Data: []byte("12345"), Central: func(h *header) { h.Offset = 0 }}}}, "reaches into"},
		"entries that overlap":              {converttest.Zip{Entries: []entry{{Name: "a", Data: text, Central: func(h *header) { h.Size += 50; h.Packed += 50 }}, {Name: "b"}}}, "reaches into"},
		"entry that reaches the directory":  {central(func(h *header) { h.Size += 50; h.Packed += 50 }), "reaches into"},
		"entry beyond the archive":          {central(func(h *header) { h.Offset = 1 << 30 }), "before the first entry"},
		"offset of 2^63-1":                  {converttest.Zip{Entries: []entry{a, {Name: "b", Central: func(h *header) { h.Zip64 = true; h.Offset = math.MaxInt64 }}}}, "belong to no entry"},
		"offset of 2^64-1":                  {central(func(h *header) { h.Zip64 = true; h.Offset = math.MaxUint64 }), "above 2^63"},
		"size of 2^64-1":                    {central(func(h *header) { h.Zip64 = true; h.Size = math.MaxUint64 }), "above 2^63"},
		"size of 2^63-1":                    {central(func(h *header) { h.Zip64 = true; h.Size, h.Packed = math.MaxInt64, math.MaxInt64 }), "reaches into"},
		"zip64 value without a field":       {central(func(h *header) { h.Size = math.MaxUint32 }), "no zip64 field"},
		"zip64 field too short":             {central(func(h *header) { h.Size = math.MaxUint32; h.Extra = []byte{1, 0, 4, 0, 1, 2, 3, 4} }), "without the values"},
		"two zip64 fields":                  {central(func(h *header) { h.Zip64 = true; h.Extra = []byte{1, 0, 0, 0} }), "two zip64"},
		"extra field cut off":               {central(func(h *header) { h.Extra = []byte{9, 9, 200, 0} }), "cut off"},
		"another name in an extra field":    {both(func(h *header) { h.Extra = unicodePath }), "another name"},
		"local header with another name":    {local(func(h *header) { h.Name = "b" }), "has the name"},
		"local header with a longer name":   {local(func(h *header) { h.Name = "aa" }), "has the name"},
		"local header with another size":    {local(func(h *header) { h.Size++ }), "sizes"},
		"local header, other packed size":   {local(func(h *header) { h.Packed-- }), "sizes"},
		"local header with another method":  {local(func(h *header) { h.Method = 8 }), "method"},
		"local header with another sum":     {local(func(h *header) { h.CRC++ }), "checksum"},
		"local header with other flags":     {local(func(h *header) { h.Flags = 1 << 3 }), "flags"},
		"local header without sizes":        {local(func(h *header) { h.Size, h.Packed = 0, 0 }), "sizes"},
		"local header that is encrypted":    {local(func(h *header) { h.Flags = 1 }), "flags"},
		"local header with long extra":      {local(func(h *header) { h.Extra = nil; h.Name = strings.Repeat("a", 200) }), "has the name"},
		"the same name twice":               {converttest.Zip{Entries: []entry{a, a}}, "duplicate"},
		"MANIFEST twice":                    {named("MANIFEST", "x", "MANIFEST"), "duplicate"},
		"LINKS twice":                       {named("LINKS", "LINKS"), "duplicate"},
		"a file and a directory":            {named("a", "a/"), "duplicate"},
		"absolute name":                     {named("/etc/passwd"), "absolute"},
		"parent":                            {named("../x"), "leaves"},
		"parent in the middle":              {named("a/../../x"), "leaves"},
		"parent with backslashes":           {named(`..\x`), "leaves"},
		"name that is not clean":            {named("a/../x"), "not clean"},
		"name with a dot":                   {named("./x"), "not clean"},
		"name with two slashes":             {named("a//x"), "not clean"},
		"empty name":                        {named(""), "empty"},
		"slash":                             {named("/"), "empty"},
		"dot":                               {named("."), "leaves"},
		"NUL in the name":                   {named("a\x00.txt"), "control"},
		"newline in the name":               {named("a\nb"), "control"},
		"name that is not UTF-8":            {named("a\xff"), "UTF-8"},
		"name of 300 bytes":                 {named(strings.Repeat("a", 300)), "too long"},
		"directory with data":               {one(entry{Name: "d/", Data: []byte("x")}), "directory with"},
		"directory with the mode of a file": {one(entry{Name: "d/", Mode: 0o100644}), "mode says"},
		"file with the mode of a directory": {one(entry{Name: "d", Mode: 0o040755}), "mode says"},
		"device":                            {one(entry{Name: "d", Mode: 0o060644}), "neither"},
		"socket":                            {one(entry{Name: "d", Mode: 0o140644}), "neither"},
		"stored with two sizes":             {both(func(h *header) { h.Size = 3 }), "stored, with sizes"},
		"deflate that cannot be so small":   {both(func(h *header) { h.Method = 8; h.Size = 5*1032 + 1 }), "cannot come out"},
		"zstd that cannot be so small":      {both(func(h *header) { h.Method = 93; h.Size = 5*32<<10 + 1 }), "cannot come out"},
		"more than it says":                 {one(entry{Name: "a", Data: text[:5000], Method: 8, Packed: entryPacked(text)}), "more than"},
		"less than it says":                 {one(entry{Name: "a", Data: text, Method: 93, Packed: converttest.Zstd(text[:5000])}), "early"},
		"no deflate":                        {one(entry{Name: "a", Data: text, Method: 8, Packed: bytes.Repeat([]byte{0xff}, 40)}), "corrupt"},
		"no zstd":                           {one(entry{Name: "a", Data: text, Method: 93, Packed: bytes.Repeat([]byte{0xff}, 40)}), "magic"},
		"wrong checksum":                    {both(func(h *header) { h.CRC++ }), "checksum"},
		"window of 2 GiB":                   {one(entry{Name: "a", Data: text, Method: 93, Packed: []byte{0x28, 0xb5, 0x2f, 0xfd, 0, 21 << 3, 3, 0, 0, 'x'}}), "window"},
		"another number of entries":         {withEnd(false, func(e *end) { e.Entries = 2 }), "ends within"},
		"fewer entries than there are":      {converttest.Zip{Entries: []entry{a, {Name: "b"}}, End: func(e *end) { e.Entries = 1 }}, "after the last"},
		"directory elsewhere":               {withEnd(false, func(e *end) { e.Offset++ }), "does not end"},
		"directory of another size":         {withEnd(false, func(e *end) { e.Size-- }), "does not end"},
		"directory offset for zip64":        {withEnd(false, func(e *end) { e.Offset = math.MaxUint32 }), "no zip64 record"},
		"zip64 record elsewhere":            {withEnd(true, func(e *end) { e.Record++ }), "locator says"},
		"zip64 record at 2^64-1":            {withEnd(true, func(e *end) { e.Record = math.MaxUint64 }), "locator says"},
		"zip64 record with another offset":  {withEnd(true, func(e *end) { e.Offset64++ }), "does not end"},
		"zip64 record with another size":    {withEnd(true, func(e *end) { e.Size64 = math.MaxUint64 - 3 }), "more than"},
		"zip64 record with 2^60 entries":    {withEnd(true, func(e *end) { e.Entries64 = 1 << 60 }), "more than"},
		"zip64 record with 199,999 entries": {withEnd(true, func(e *end) { e.Entries64 = 199_999 }), "ends within"},
		"zip64 that contradicts":            {withEnd(true, func(e *end) { e.Entries = 2 }), "contradicts"},
	}
}

func entryPacked(p []byte) []byte {
	z := one(entry{Name: "a", Data: p, Method: 8}).Bytes()
	n := binary.LittleEndian.Uint32(z[18:])
	return z[31 : 31+n]
}

func TestAmbiguousArchivesAreRefused(t *testing.T) {
	for name, c := range hostile() {
		t.Run(name, func(t *testing.T) {
			got, err := readAll(c.zip.Bytes())
			if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v and error %v, want an invalid argument with %q", got, err, c.want)
			}
		})
	}
}

func TestUnsupportedMethodsAndFlags(t *testing.T) {
	for _, method := range []uint16{1, 9, 12, 14, 20, 95, 99} {
		_, err := readAll(one(entry{Name: "a", Method: method, Data: []byte("x"), Packed: []byte("y")}).Bytes())
		if !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), "unsupported method") {
			t.Errorf("method %d: got error %v", method, err)
		}
	}
	for _, flag := range []uint16{1, 1 << 6, 1 << 13} {
		_, err := readAll(both(func(h *header) { h.Flags = flag }).Bytes())
		if !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), "encrypted") {
			t.Errorf("flag %#x: got error %v", flag, err)
		}
	}
}

func TestMissingLocalHeader(t *testing.T) {
	p := one(entry{Name: "a"}).Bytes()
	p[0] = 'X'
	if _, err := readAll(p); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "no local header") {
		t.Errorf("got error %v", err)
	}
}

// TestNumberOfEntriesIsLimited reads an archive with more than MaxEntries entries.
func TestNumberOfEntriesIsLimited(t *testing.T) {
	var z converttest.Zip
	z.Zip64 = true
	for i := range zipdir.MaxEntries + 1 {
		z.Entries = append(z.Entries, entry{Name: fmt.Sprint(i)})
	}
	_, err := readAll(z.Bytes())
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "more than 200000") {
		t.Errorf("got error %v", err)
	}
}

// TestTruncatedArchives reads each prefix of an archive.
func TestTruncatedArchives(t *testing.T) {
	p := good()["mixed"].Bytes()
	for n := range p {
		if _, err := readAll(p[:n]); err == nil {
			t.Errorf("%d of %d bytes are an archive", n, len(p))
		}
	}
}

// TestReadsOfDirectory counts the calls of ReadAt and the bytes for the directory of a large archive.
func TestReadsOfDirectory(t *testing.T) {
	p := one(entry{Name: "a", Data: storetest.Random(1, 8<<20)}).Bytes()
	r := &counter{r: bytes.NewReader(p)}
	if _, err := zipdir.Read(r, int64(len(p)), anyRoom); err != nil {
		t.Fatal(err)
	}
	if r.calls > 2 || r.bytes > 70<<10 {
		t.Errorf("%d reads of %d bytes", r.calls, r.bytes)
	}
}

type counter struct {
	r     io.ReaderAt
	calls int
	bytes int
}

func (c *counter) ReadAt(p []byte, off int64) (int, error) {
	n, err := c.r.ReadAt(p, off)
	c.calls++
	c.bytes += n
	return n, err
}

// FuzzRead checks that archive/zip reads the same content from each archive that Read accepts.
func FuzzRead(f *testing.F) {
	for name, z := range good() {
		if name != "many" && name != "comment" && name != "comment64" {
			f.Add(z.Bytes())
		}
	}
	for _, c := range hostile() {
		if p := c.zip.Bytes(); len(p) < 1<<14 {
			f.Add(p)
		}
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		got, err := readAll(p)
		if err != nil {
			return
		}
		want, err := oracle(p)
		if err != nil {
			t.Fatalf("the standard library does not read it: %v", err)
		}
		for name := range got {
			_, g, _ := strings.Cut(got[name], " ")
			_, w, ok := strings.Cut(want[name], " ")
			if !ok || g != w {
				t.Fatalf("entry %q: got %.100q, want %.100q", name, g, w)
			}
		}
		if len(got) != len(want) {
			t.Fatalf("got %d entries, want %d", len(got), len(want))
		}
	})
}

// TestLargeWindows opens entries with windows that exceed their memory together.
func TestLargeWindows(t *testing.T) {
	pack := func(window int) ([]byte, *zipdir.Entry) {
		var b bytes.Buffer
		w, err := zstd.NewWriter(&b, zstd.WithWindowSize(window), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		plain := make([]byte, window+1)
		w.Write(plain)
		w.Close()
		p := one(entry{Name: "a", Data: plain, Method: 93, Packed: b.Bytes()}).Bytes()
		entries, err := zipdir.Read(bytes.NewReader(p), int64(len(p)), anyRoom)
		if err != nil {
			t.Fatal(err)
		}
		return p, &entries[0]
	}
	open := func(ctx context.Context, p []byte, e *zipdir.Entry) (io.ReadCloser, error) {
		return zipdir.Open(ctx, io.NopCloser(bytes.NewReader(p[e.Start():][:e.Span()])), e)
	}
	large, e := pack(convert.WindowMemory / 2)
	var held []io.ReadCloser
	for range 2 {
		r, err := open(t.Context(), large, e)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if n, err := io.Copy(io.Discard, r); err != nil || n != e.Size {
			t.Fatalf("%d bytes, error %v", n, err)
		}
		held = append(held, r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r, err := open(ctx, large, e); !errors.Is(err, context.Canceled) {
		r.Close()
		t.Errorf("a third window: got error %v, want that it waits", err)
	}
	small, se := pack(zipdir.SmallWindow)
	r, err := open(ctx, small, se)
	if err != nil {
		t.Fatalf("a small window beside large ones: %v", err)
	}
	r.Close()
	held[0].Close()
	held[0].Close() // frees once
	again, err := open(t.Context(), large, e)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if r, err := open(ctx, large, e); err == nil {
		r.Close()
		t.Error("a third window, after one was closed twice")
	}
}

package filetable_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

func TestCleanPath(t *testing.T) {
	for in, want := range map[string]string{
		"model.safetensors":              "model.safetensors",
		"text_encoder/model.safetensors": "text_encoder/model.safetensors",
		"a/b/c/d/model.safetensors":      "a/b/c/d/model.safetensors",
		"foo/../bar/model.safetensors":   "bar/model.safetensors",
		"text_encoder/":                  "text_encoder",
		"./a":                            "a",
		"a..b":                           "a..b",
		"-leading":                       "-leading",
		".wh.x":                          ".wh.x",
		`a\b`:                            `a\b`,
		"モデル/重み.bin":                     "モデル/重み.bin",
		strings.Repeat("x", 255):         strings.Repeat("x", 255),

		"../etc/passwd": "", "../../../etc/passwd": "", "text_encoder/../../../etc/passwd": "",
		"/etc/passwd": "", "": "", ".": "", "..": "", "/": "", "model\x00.safetensors": "",
		`..\..\x`: "", `a\..\..\x`: "", `\x`: "", `./\`: "", `.//\x`: "", `a\..\..\b/../c`: "", "a\nb": "", "a\x7fb": "", "a\xffb": "",
		strings.Repeat("x", 256): "", strings.Repeat("x/", 64) + "x": "", strings.Repeat("long/", 900): "",
	} {
		got, err := filetable.CleanPath(in)
		if got != want || (want == "") != errdefs.IsInvalidArgument(err) {
			t.Errorf("CleanPath(%.60q) = %q, %v; want %q", in, got, err, want)
		}
	}
}

func FuzzCleanPath(f *testing.F) {
	for _, s := range []string{"a/b", "../x", `a\..\..\x`, "foo/../bar", "a\x00b", "/", ".wh.x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := filetable.CleanPath(s)
		if err != nil {
			return
		}
		if again, err := filetable.CleanPath(got); err != nil || again != got {
			t.Errorf("CleanPath(%q) = %q, and of that %q, %v", s, got, again, err)
		}
		if joined := path.Join("/root", got); !strings.HasPrefix(joined, "/root/") {
			t.Errorf("CleanPath(%q) = %q leaves", s, got)
		}
	})
}

func TestTarIndexRefusesWhatAModelMustNotContain(t *testing.T) {
	reg := tar.Header{Name: "f", Mode: 0o644}
	for name, h := range map[string]tar.Header{
		"path leaves":                    {Name: "../x", Mode: 0o644},
		"absolute path":                  {Name: "/x", Mode: 0o644},
		"absolute symlink":               {Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"},
		"symlink leaves":                 {Name: "d/l", Typeflag: tar.TypeSymlink, Linkname: "../../x"},
		"hard link to a later entry":     {Name: "l", Typeflag: tar.TypeLink, Linkname: "later"},
		"hard link leaves":               {Name: "l", Typeflag: tar.TypeLink, Linkname: "../f"},
		"character device":               {Name: "c", Typeflag: tar.TypeChar},
		"block device":                   {Name: "b", Typeflag: tar.TypeBlock},
		"fifo":                           {Name: "p", Typeflag: tar.TypeFifo},
		"a user that no file can have":   {Name: "u", Mode: 0o644, Uid: 1<<32 + 1, Format: tar.FormatGNU},
		"a negative group":               {Name: "g", Mode: 0o644, Gid: -2, Format: tar.FormatGNU},
		"control character in the name":  {Name: "a\nb", Mode: 0o644},
		"a directory that leaves":        {Name: "../", Typeflag: tar.TypeDir},
		"name with NUL through PAX path": {Name: "x\x01", Mode: 0o644},
	} {
		p := storetest.Tar(t, []tar.Header{reg, h}, [][]byte{[]byte("x"), nil})
		if _, err := filetable.TarIndex(bytes.NewReader(p), int64(len(p))); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v, want invalid argument", name, err)
		}
	}
	good := storetest.Tar(t, []tar.Header{reg}, [][]byte{bytes.Repeat([]byte("x"), 1000)})
	for name, p := range map[string][]byte{
		"empty": nil, "gzip": {0x1f, 0x8b, 8, 0, 1, 2, 3, 4}, "GGUF": append([]byte("GGUF"), make([]byte, 600)...),
		"cut in the content": good[:1000], "cut in the header": good[:300],
	} {
		if _, err := filetable.TarIndex(bytes.NewReader(p), int64(len(p))); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v, want invalid argument", name, err)
		}
	}
}

func TestTarIndexMasksModes(t *testing.T) {
	p := storetest.Tar(t, []tar.Header{{Name: "f", Mode: 0o6755}, {Name: "t/", Typeflag: tar.TypeDir, Mode: 0o1777}}, [][]byte{nil, nil})
	m, err := filetable.TarIndex(bytes.NewReader(p), int64(len(p)))
	if err != nil {
		t.Fatal(err)
	}
	if m[0].Mode != 0o755 || m[1].Mode != 0o777 {
		t.Errorf("modes %#o %#o, want 0755 0777", m[0].Mode, m[1].Mode)
	}
}

func TestTarIndexKeepsOwners(t *testing.T) {
	p := storetest.Tar(t, []tar.Header{
		{Name: "f", Mode: 0o600, Uid: 1000, Gid: 1<<32 - 2},
		{Name: "hard", Typeflag: tar.TypeLink, Linkname: "f", Uid: 7},
		{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o750, Uid: 1},
		{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "f", Gid: 2},
		{Name: "none", Mode: 0o600, Uid: -1, Gid: 1<<32 - 1, Format: tar.FormatGNU},
	}, make([][]byte, 5))
	members, err := filetable.TarIndex(bytes.NewReader(p), int64(len(p)))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][2]uint32{}
	for _, m := range members {
		f := m.File()
		got[f.Path] = [2]uint32{f.UID, f.GID}
	}
	want := map[string][2]uint32{"f": {1000, 1<<32 - 2}, "hard": {1000, 1<<32 - 2}, "d": {1, 0}, "l": {0, 2}, "none": {}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("owners (-want +got):\n%s", diff)
	}
}

// TestTarNamesMemory: of a header only the names are kept.
func TestTarNamesMemory(t *testing.T) {
	const n, size = 64, 512 << 10
	comment := map[string]string{"comment": strings.Repeat("x", size)}
	for name, h := range map[string]tar.Header{
		"path":   {Name: "é", Typeflag: tar.TypeDir},
		"target": {Name: "link", Linkname: "é", Typeflag: tar.TypeSymlink},
	} {
		h.PAXRecords = comment
		one := storetest.Tar(t, []tar.Header{h}, [][]byte{nil})
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		var all [n][]filetable.Member
		for i := range all {
			var err error
			if all[i], err = filetable.TarIndex(bytes.NewReader(one), int64(len(one))); err != nil || len(all[i]) != 1 {
				t.Fatalf("%s: %v, %v", name, all[i], err)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		if kept := int64(after.HeapAlloc) - int64(before.HeapAlloc); kept > n*size/4 {
			t.Errorf("%s: %d members keep %d MiB", name, n, kept>>20)
		}
		runtime.KeepAlive(all)
		runtime.KeepAlive(one)
	}
}

func TestPlaceTar(t *testing.T) {
	one := []filetable.Member{{Path: "bar.json", Type: filetable.TypeReg}}
	for _, tc := range []struct {
		name    string
		members []filetable.Member
		as      string
		want    string
	}{
		{"writers that dropped the directory", one, "foo/bar.json", "foo/bar.json"},
		{"the same path", one, "bar.json", "bar.json"},
		{"no path given", one, "", "bar.json"},
		{"another base name", one, "foo/baz.json", "bar.json"},
		{"member with a directory", []filetable.Member{{Path: "x/bar.json", Type: filetable.TypeReg}}, "foo/bar.json", "x/bar.json"},
		{"several members", append([]filetable.Member{{Path: "d", Type: filetable.TypeDir}}, one...), "foo/bar.json", "d"},
	} {
		if got := filetable.PlaceTar(tc.members, tc.as); got[0].Path != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got[0].Path, tc.want)
		}
	}
}

// walked is a member as read from a stream; content is nil except for regular files.
type walked struct {
	filetable.Member
	content []byte
}

// walk reads a tar as one that is unpacked while it arrives.
func walk(p []byte) (all []walked, err error) {
	err = filetable.WalkTar(struct{ io.Reader }{bytes.NewReader(p)}, func(m filetable.Member, r io.Reader) error {
		w := walked{Member: m}
		if r != nil {
			if w.content, err = io.ReadAll(r); err != nil {
				return err
			}
		}
		all = append(all, w)
		return nil
	})
	return all, err
}

// FuzzTarIndex compares the offsets of members with the content read from the stream.
func FuzzTarIndex(f *testing.F) {
	seed := func(h []tar.Header, c [][]byte) {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		for i := range h {
			h[i].Size = int64(len(c[i]))
			w.WriteHeader(&h[i])
			w.Write(c[i])
		}
		w.Close()
		f.Add(buf.Bytes())
	}
	seed([]tar.Header{{Name: "a", Mode: 0o644, Typeflag: tar.TypeReg}, {Name: "d/", Typeflag: tar.TypeDir}, {Name: "l", Typeflag: tar.TypeLink, Linkname: "a"}},
		[][]byte{[]byte("hello"), nil, nil})
	seed([]tar.Header{{Name: strings.Repeat("long/", 30) + "x", Mode: 0o644, Typeflag: tar.TypeReg, Format: tar.FormatPAX}}, [][]byte{bytes.Repeat([]byte("y"), 2000)})
	seed([]tar.Header{{Name: strings.Repeat("gnu/", 40) + "x", Mode: 0o644, Typeflag: tar.TypeReg, Format: tar.FormatGNU}}, [][]byte{[]byte("z")})
	f.Fuzz(func(t *testing.T, p []byte) {
		members, err := filetable.TarIndex(bytes.NewReader(p), int64(len(p)))
		walked, walkErr := walk(p)
		if err != nil {
			return
		}
		if walkErr == nil && len(walked) != len(members) {
			t.Fatalf("%d members by their headers, %d in the stream", len(members), len(walked))
		}
		for i, m := range members {
			if walkErr == nil {
				w := walked[i]
				if diff := cmp.Diff(m, w.Member); diff != "" {
					t.Fatalf("by its header, in the stream:\n%s", diff)
				}
				if w.content != nil && !bytes.Equal(w.content, p[m.Offset:][:m.Size]) {
					t.Fatalf("member %q is %q in the stream, %q at its place", m.Path, w.content, p[m.Offset:][:m.Size])
				}
			}
			if c, err := filetable.CleanPath(m.Path); err != nil || c != m.Path {
				t.Errorf("member %q is not clean: %v", m.Path, err)
			}
			if m.Type == filetable.TypeReg && (m.Offset < 0 || m.Size < 0 || m.Offset+m.Size > int64(len(p))) {
				t.Errorf("member %q at %d+%d of %d", m.Path, m.Offset, m.Size, len(p))
			}
			if m.Mode&^0o777 != 0 {
				t.Errorf("member %q: mode %#o", m.Path, m.Mode)
			}
		}
	})
}

func TestTableValidate(t *testing.T) {
	blob := []byte("weights")
	d := digest.FromBytes(blob)
	good := func() *filetable.Table {
		return storetest.NewBuilder("x").Raw("a/w", blob, 0o644).Inline("z", []byte("i"), 0o600).
			File(filetable.File{Path: "a", Type: filetable.TypeDir, Mode: 0o755}).
			File(filetable.File{Path: "l", Type: filetable.TypeSymlink, Target: "a/w"}).Table()
	}
	if err := good().Validate(); err != nil {
		t.Fatal(err)
	}
	p, err := good().Encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := filetable.Decode(p)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(back, good()); diff != "" {
		t.Errorf("round trip (-got +want):\n%s", diff)
	}
	for name, change := range map[string]func(*filetable.Table){
		"later version":          func(t *filetable.Table) { t.Version = 2 },
		"no origin":              func(t *filetable.Table) { t.Origin = filetable.Origin{} },
		"unsafe path":            func(t *filetable.Table) { t.Files[1].Path = "a/../../w" },
		"not clean":              func(t *filetable.Table) { t.Files[1].Path = "a//w" },
		"not sorted":             func(t *filetable.Table) { t.Files[0], t.Files[3] = t.Files[3], t.Files[0] },
		"setuid":                 func(t *filetable.Table) { t.Files[1].Mode = 0o4755 },
		"negative size":          func(t *filetable.Table) { t.Files[1].Size = -1 },
		"negative blob":          func(t *filetable.Table) { t.Blobs[0].Size = -1 },
		"blob twice":             func(t *filetable.Table) { t.Blobs = append(t.Blobs, t.Blobs[0]) },
		"digest that climbs":     func(t *filetable.Table) { t.Blobs[0].Digest = "sha256:../../x" },
		"sha512":                 func(t *filetable.Table) { t.Blobs[0].Digest = digest.Digest("sha512:" + strings.Repeat("a", 128)) },
		"other digest":           func(t *filetable.Table) { t.Files[1].Digest = digest.FromString("other") },
		"beyond the blob":        func(t *filetable.Table) { t.Files[1].Source.Offset = 1 },
		"unknown blob":           func(t *filetable.Table) { t.Files[1].Source.Blob = digest.FromString("other") },
		"inline bytes differ":    func(t *filetable.Table) { t.Files[3].Source.Inline = []byte("j") },
		"unknown codec":          func(t *filetable.Table) { t.Blobs[0].Codec = "lz4" },
		"unknown archive":        func(t *filetable.Table) { t.Blobs[0].Archive = "cpio" },
		"symlink leaves":         func(t *filetable.Table) { t.Files[2].Target = "../x" },
		"absolute symlink":       func(t *filetable.Table) { t.Files[2].Target = "/a/w" },
		"file and directory":     func(t *filetable.Table) { t.Files[0].Type, t.Files[0].Target = filetable.TypeSymlink, "z" },
		"unknown type":           func(t *filetable.Table) { t.Files[1].Type = "char" },
		"no source":              func(t *filetable.Table) { t.Files[1].Source = nil },
		"path twice, two things": func(t *filetable.Table) { t.Files[3].Path = "l" },
		"chunks with a hole": func(t *filetable.Table) {
			t.Files[1].Source.Chunks = []filetable.Chunk{{Offset: 1, Size: 6, Digest: d}}
		},
		"chunks too short":     func(t *filetable.Table) { t.Files[1].Source.Chunks = []filetable.Chunk{{Size: 6, Digest: d}} },
		"unpack of a raw blob": func(t *filetable.Table) { t.Unpacks = []filetable.Unpack{{Blob: d}} },
		"diffID of a raw blob": func(t *filetable.Table) { t.Blobs[0].DiffID = digest.FromString("other") },
		"sizes overflow": func(t *filetable.Table) {
			t.Blobs = append(t.Blobs, filetable.Blob{Digest: digest.FromString("o"), Size: 1<<63 - 1})
		},
	} {
		tab := good()
		change(tab)
		err := tab.Validate()
		if !errdefs.IsInvalidArgument(err) && !errdefs.IsNotImplemented(err) && !errdefs.IsDataLoss(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzDecodeTable checks that a table that decodes is safe, and that its encoding decodes to the same
// table.
func FuzzDecodeTable(f *testing.F) {
	for i, b := range []*storetest.Builder{
		storetest.NewBuilder("a").Raw("w", []byte("x"), 0o644),
		storetest.NewBuilder("b").Inline("i", []byte("y"), 0o644).Unpack([]byte("z"), filetable.CodecGzip, "as"),
	} {
		p, err := b.Table().Encode()
		if err != nil {
			f.Fatal(i, err)
		}
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		tab, err := filetable.Parse(p)
		if err != nil {
			return
		}
		if q, err := tab.Encode(); err != nil || !bytes.Equal(p, q) {
			t.Error(fmt.Errorf("not canonical: %w", err))
		}
	})
}

// TestParseRefuses refuses tables that another reader, or another version of ballast, would read in another way.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	p, err := storetest.NewBuilder("a").Raw("w", []byte("x"), 0o644).Table().Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range [][2]string{
		{`"name":"w"`, `"name":"v","name":"w"`}, {`"name":"w"`, `"name":"w","NAME":"w"`}, {`"name":"w"`, `"Name":"w"`}, {`"name":"w"`, `"name":"w","new":1`},
		{`"name":"w"`, `"name": "w"`}, {`"name":"w"`, `"name":"\u0077"`}, {`{`, ` {`},
	} {
		changed := bytes.Replace(p, []byte(tt[0]), []byte(tt[1]), 1)
		if _, err := filetable.Parse(changed); bytes.Equal(p, changed) || !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "not in the form that ballast writes") {
			t.Errorf("%s: %v", changed, err)
		}
	}
	if _, err := filetable.Parse(p); err != nil {
		t.Error(err)
	}
}

// TestLimits checks that a table or archive above a limit is refused with the name of the limit.
func TestLimits(t *testing.T) {
	want := func(err error, limit string) {
		t.Helper()
		if e, ok := errors.AsType[*filetable.LimitError](err); !ok || e.Limit != limit || !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), limit) {
			t.Errorf("got %v, want limit %s", err, limit)
		}
	}
	deep := func(n, depth int) (files []filetable.File) { // n files, each in its own chain of depth directories
		for i := range n {
			files = append(files, filetable.File{Path: strings.Repeat(fmt.Sprintf("%07d/", i), depth) + "f", Type: filetable.TypeReg, Mode: 0o644, Source: &filetable.Source{}})
		}
		return files
	}
	if err := filetable.CheckParents(deep(300, 62)); err != nil {
		t.Errorf("18,600 directories: %v", err)
	}
	want(filetable.CheckParents(deep(330, 62)), filetable.LimitDirs)
	tab := storetest.NewBuilder("a").Inline("i", []byte("y"), 0o644).Table()
	tab.Files = deep(200_001, 0)
	want(tab.Validate(), filetable.LimitFiles)
	blob := storetest.Random(1, 8)
	tab = storetest.NewBuilder("a").Parts("p", 0o644, storetest.Part{Blob: blob, N: 1}).Parts("q", 0o644, storetest.Part{Blob: blob, N: 1}).Table()
	for i, n := range []int{200_000, 200_000} {
		f := &tab.Files[i]
		f.Source.Parts, f.Size = slices.Repeat(f.Source.Parts, n), int64(n)
	}
	if err := tab.Validate(); err != nil {
		t.Errorf("400,000 parts: %v", err)
	}
	tab.Files[0].Source.Parts = append(tab.Files[0].Source.Parts, tab.Files[0].Source.Parts[0])
	tab.Files[0].Size++
	want(tab.Validate(), filetable.LimitFiles)

	headers := bytes.Repeat(make([]byte, 512), 100_001)
	one := storetest.Tar(t, []tar.Header{{Name: "a", Mode: 0o644, Typeflag: tar.TypeReg}}, [][]byte{nil})[:512]
	for i := range 100_001 {
		copy(headers[i*512:], one)
	}
	_, err := filetable.TarIndex(bytes.NewReader(headers), int64(len(headers)))
	want(err, filetable.LimitMembers)
	var n atomic.Int64
	n.Store(filetable.MaxMembers)
	_, err = filetable.TarIndexOf(bytes.NewReader(headers), 512, &n)
	want(err, filetable.LimitMembers)
}

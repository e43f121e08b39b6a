package layout

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
)

var blobName = "blobs/sha256/" + strings.Repeat("ab", 32)

type entry struct {
	tar.Header
	body string
}

func archiveOf(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		e.Mode, e.Size = 0o644, int64(len(e.body))
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func file(name, body string) entry { return entry{tar.Header{Name: name}, body} }

// TestExtract extracts the files of a layout and nothing else, whatever else an archive has.
func TestExtract(t *testing.T) {
	t.Parallel()
	whole := []entry{file("./oci-layout", "{}"), file("index.json", "{}"), file(blobName, "weights")}
	link := func(name, target string, kind byte) entry {
		return entry{tar.Header{Name: name, Linkname: target, Typeflag: kind}, ""}
	}
	with := func(more ...entry) []byte { return archiveOf(t, append(more, whole...)...) }
	packed, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	full := errors.New("full")
	for name, tt := range map[string]struct {
		archive []byte
		room    int64
		want    string // in the error; empty for success
	}{
		"plain":             {archive: with()},
		"zstd":              {archive: packed.EncodeAll(with(), nil)},
		"other names":       {archive: with(file("../escape", "x"), file("/etc/passwd", "x"), file("blobs/sha256/../../../x", "x"), link("a", "/etc", tar.TypeSymlink), file("blobs/sha512/x", "x"))},
		"link as blob":      {archive: archiveOf(t, link(blobName, "/etc/shadow", tar.TypeSymlink)), want: "not a regular one"},
		"hard link":         {archive: archiveOf(t, link("index.json", "/etc/shadow", tar.TypeLink)), want: "not a regular one"},
		"link as directory": {archive: with(link("blobs", "/tmp", tar.TypeSymlink))},
		"two indexes":       {archive: with(file("index.json", "{}")), want: "index.json twice"},
		"blob twice":        {archive: with(file("./"+blobName, "other")), want: "twice"},
		"bomb":              {archive: packed.EncodeAll(with(file("blobs/sha256/"+strings.Repeat("cd", 32), strings.Repeat("0", 8<<20))), nil), room: 4 << 20, want: "full"},
		"large index":       {archive: archiveOf(t, file("index.json", strings.Repeat("0", maxIndex+1))), want: "more than"},
		"cut":               {archive: with()[:513], want: "damaged"},
		"not a tar file":    {archive: []byte("hello"), want: "damaged, or not a tar file"},
		"empty":             {archive: nil, want: "no OCI layout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			root, err := os.OpenRoot(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			left := tt.room
			err = Extract(t.Context(), bytes.NewReader(tt.archive), root, func(n int64) error {
				if left -= n; tt.room > 0 && left < 0 {
					return full
				}
				return nil
			})
			switch {
			case tt.want == "" && err != nil:
				t.Fatal(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n")):
				t.Fatalf("got %v, want %q", err, tt.want)
			case tt.want != "" && !errors.Is(err, full) && !errdefs.IsInvalidArgument(err):
				t.Errorf("%v is no invalid argument", err)
			}
			var names []string
			if err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
				if !e.IsDir() {
					names = append(names, strings.TrimPrefix(path, dir+"/"))
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(names, " "); tt.want == "" && got != blobName+" index.json oci-layout" {
				t.Errorf("extracted %s", got)
			}
		})
	}
}

// FuzzExtract writes nothing outside of the names of a layout.
func FuzzExtract(f *testing.F) {
	f.Add([]byte("x"))
	f.Fuzz(func(t *testing.T, p []byte) {
		dir := t.TempDir()
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		left := int64(1 << 20)
		_ = Extract(t.Context(), bytes.NewReader(p), root, func(n int64) error {
			if left -= n; left < 0 {
				return errors.New("full")
			}
			return nil
		})
	})
}

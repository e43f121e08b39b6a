package layout

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// linked makes a layout with a manifest of linked files.
func linked(t *testing.T, dir, tag string, files ...string) *Layout {
	t.Helper()
	l, err := Create(dir, tag)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: mediatype.OCIManifest, Config: ocispec.DescriptorEmptyJSON, Layers: []ocispec.Descriptor{}}
	for _, file := range files {
		p, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		d := digest.FromBytes(p)
		for range 2 { // the second time, the blob is the file already
			if err := l.Link(d, int64(len(p)), file); err != nil {
				t.Fatal(err)
			}
		}
		m.Layers = append(m.Layers, ocispec.Descriptor{MediaType: "a/b", Digest: d, Size: int64(len(p))})
	}
	p, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.PutManifest(t.Context(), mediatype.OCIManifest, p); err != nil {
		t.Fatal(err)
	}
	return l
}

func writeFile(t *testing.T, dir, name, text string) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// blobsIn returns the names of the blobs of a layout.
func blobsIn(t *testing.T, dir string) map[string]bool {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, blobsDir))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, e := range entries {
		names[e.Name()] = true
	}
	return names
}

// TestLink: a blob is the file that it was linked to, in place of another one, and only if it can be the blob.
func TestLink(t *testing.T) {
	dir, files := t.TempDir(), t.TempDir()
	a := writeFile(t, files, "a", "aaa")
	l := linked(t, dir, "v1", a)
	d := digest.FromString("aaa")
	same := func(file string) bool {
		t.Helper()
		want, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.Lstat(filepath.Join(dir, blobPath(d)))
		return err == nil && os.SameFile(got, want)
	}
	if !same(a) {
		t.Error("the blob is not the file")
	}
	repaired := writeFile(t, files, "repaired", "aaa")
	if err := l.Link(d, 3, repaired); err != nil || !same(repaired) {
		t.Errorf("another file with these bytes: %v", err)
	}
	link := filepath.Join(files, "link")
	if err := os.Symlink(a, link); err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string]string{"a symbolic link": link, "of another size": writeFile(t, files, "b", "bb")} {
		if err := l.Link(d, 3, file); !errdefs.IsDataLoss(err) || !same(repaired) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := l.Link(d, 3, filepath.Join(files, "none")); !os.IsNotExist(err) {
		t.Errorf("no file: %v", err)
	}
	if got := blobsIn(t, dir); len(got) != 2 {
		t.Errorf("the blobs are %v", got)
	}
}

// TestPrune: what only the removed manifest needs is removed.
func TestPrune(t *testing.T) {
	dir, files := t.TempDir(), t.TempDir()
	a, b, c := writeFile(t, files, "a", "a"), writeFile(t, files, "b", "b"), writeFile(t, files, "c", "c")
	one := linked(t, dir, "reg.example/one:v1", a, b)
	linked(t, dir, "reg.example/two:v1", b, c)
	p, err := one.Named(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	has := func(text string) bool { return blobsIn(t, dir)[digest.FromString(text).Encoded()] }
	if err := one.Prune(t.Context(), p); err != nil || !has("a") {
		t.Errorf("a manifest that the index names: %v", err)
	}
	// What cannot be judged stops the removal before it changes anything.
	const index = `{"manifests":[{"mediaType":"a/b","digest":"sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881","size":1}]}`
	strange := ocispec.Descriptor{MediaType: mediatype.OCIIndex, Annotations: map[string]string{mediatype.AnnotationRefName: "reg.example/three:v1"}}
	if err := one.add(t.Context(), strange, []byte(index)); err != nil {
		t.Fatal(err)
	}
	if err := one.Remove(t.Context(), p); !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), "reg.example/three:v1") || !has("a") {
		t.Errorf("beside an index: %v, %v", err, blobsIn(t, dir))
	}
	if q, err := one.Named(t.Context()); err != nil || string(q) != string(p) {
		t.Errorf("after a removal that failed: %s, %v", q, err)
	}
	three, err := Create(dir, "reg.example/three:v1")
	if err != nil {
		t.Fatal(err)
	}
	defer three.Close()
	// What nobody can read does not, and its tag can be removed.
	if err := os.Remove(filepath.Join(dir, blobPath(digest.FromString(index)))); err != nil {
		t.Fatal(err)
	}
	if err := one.Remove(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := three.Remove(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if err := three.Remove(t.Context(), nil); !errdefs.IsNotFound(err) {
		t.Errorf("twice: %v", err)
	}
	for range 2 {
		if err := one.Prune(t.Context(), p); err != nil || has("a") || !has("b") || !has("c") || blobsIn(t, dir)[digest.FromBytes(p).Encoded()] {
			t.Errorf("%v, %v", err, blobsIn(t, dir))
		}
	}
	if _, err := os.Stat(a); err != nil {
		t.Error(err)
	}
	if _, err := Open(dir, "reg.example/two:v1"); err != nil {
		t.Error(err)
	}
}

package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// TestImage builds an image twice, and writes the files for the Dockerfile: all are equal.
func TestImage(t *testing.T) {
	dir := t.TempDir()
	var tars [2][]byte
	for i := range tars {
		out := filepath.Join(dir, string(rune('a'+i)))
		ok(t, run(t.Context(), []string{"-o", out, "-only", "image", "-arch", "amd64", "-version", "v1"}))
		p, err := os.ReadFile(filepath.Join(out, "image.tar"))
		ok(t, err)
		tars[i] = p
	}
	if !bytes.Equal(tars[0], tars[1]) {
		t.Error("two builds differ")
	}
	root := filepath.Join(dir, "root")
	ok(t, run(t.Context(), []string{"-o", root, "-only", "root", "-arch", "amd64", "-version", "v1"}))
	want := layerFiles(t, filepath.Join(dir, "a/image"))
	ok(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		info, err := os.Lstat(path)
		ok(t, err)
		w := want[rel]
		delete(want, rel)
		if w.info == nil || info.Mode() != w.info.Mode() {
			t.Errorf("%s: %v, want %+v", rel, info.Mode(), w.info)
		} else if p, _ := os.ReadFile(path); !bytes.Equal(p, w.data) {
			t.Errorf("%s: %d bytes, want %d", rel, len(p), len(w.data))
		}
		return nil
	}))
	for name := range want {
		t.Errorf("no %s", name)
	}
}

type imageFile struct {
	info fs.FileInfo
	data []byte
}

// layerFiles returns the files of the layers of the only image in a layout.
func layerFiles(t *testing.T, dir string) map[string]imageFile {
	t.Helper()
	top, err := layout.ImageIndexFromPath(dir)
	ok(t, err)
	m, err := top.IndexManifest()
	ok(t, err)
	index, err := top.ImageIndex(m.Manifests[0].Digest)
	ok(t, err)
	m, err = index.IndexManifest()
	ok(t, err)
	img, err := index.Image(m.Manifests[0].Digest)
	ok(t, err)
	layers, err := img.Layers()
	ok(t, err)
	files := map[string]imageFile{}
	for _, l := range layers {
		p, err := l.Uncompressed()
		ok(t, err)
		for r := tar.NewReader(p); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			ok(t, err)
			data, err := io.ReadAll(r)
			ok(t, err)
			files[filepath.Clean(h.Name)] = imageFile{h.FileInfo(), data}
		}
		ok(t, p.Close())
	}
	return files
}

// TestTar wants modes that do not depend on the umask, and the end of a tar: two blocks of zeros.
func TestTar(t *testing.T) {
	d, b := tree(t.TempDir()), bytes.Buffer{}
	ok(t, d.write("a/x", []byte("x")))
	ok(t, os.Chmod(d.path("a/x"), 0o700))
	ok(t, os.Chmod(d.path("a"), 0o700|fs.ModeSticky))
	ok(t, d.tar(&b, time.Unix(1700000000, 0)))
	if p := b.Bytes(); len(p) != 5*512 || !bytes.Equal(p[3*512:], make([]byte, 2*512)) {
		t.Errorf("%d bytes", len(p))
	}
	r := tar.NewReader(&b)
	for _, want := range []tar.Header{{Name: "a/", Mode: 0o1777}, {Name: "a/x", Mode: 0o755}} {
		if h, err := r.Next(); err != nil || h.Name != want.Name || h.Mode != want.Mode || h.Uid != 0 || h.ModTime.Unix() != 1700000000 {
			t.Errorf("%+v, %v, want %+v", h, err, want)
		}
	}
}

// TestCertificates parses the certificates as Go does.
func TestCertificates(t *testing.T) {
	n := 0
	for rest := certificates(); len(rest) > 0; n++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			t.Fatalf("%d bytes after certificate %d are none", len(rest), n)
		}
		if c, err := x509.ParseCertificate(block.Bytes); err != nil || !c.IsCA {
			t.Errorf("certificate %d: %v", n, err)
		}
	}
	if n < 50 {
		t.Errorf("%d certificates", n)
	}
}

// TestCommandLine checks that invalid command lines are refused.
func TestCommandLine(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	for _, args := range [][]string{{}, {"-o", out, "b"}, {"-x"}, {"-o", out, "-only", "image,other"}, {"-o", out, "-only", "root"}, {"-o", out, "-version", "v0.1.0", "-only", "deb", "-arch", "other"}} {
		if err := run(t.Context(), args); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}

package main

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/contrib/image/build"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// TestReproducible builds an image twice, and writes the files for the Dockerfile: all are equal.
func TestReproducible(t *testing.T) {
	dir := t.TempDir()
	var digests [2]string
	for i := range digests {
		out := filepath.Join(dir, string(rune('a'+i)))
		if err := run(t.Context(), []string{"-source", "../..", "-o", out, "-arch", "amd64", "-version", "v1", "-epoch", "1700000000"}); err != nil {
			t.Fatal(err)
		}
		index, err := layout.ImageIndexFromPath(out)
		if err != nil {
			t.Fatal(err)
		}
		m, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		digests[i] = m.Manifests[0].Digest.String()
	}
	if digests[0] != digests[1] {
		t.Errorf("two builds: %q", digests)
	}

	root := filepath.Join(dir, "root")
	if err := run(t.Context(), []string{"-source", "../..", "-root", root, "-arch", "amd64", "-version", "v1"}); err != nil {
		t.Fatal(err)
	}
	commit, err := build.CommitOf(t.Context(), "../..")
	if err != nil {
		t.Fatal(err)
	}
	s := settings{Build: build.Build{Source: "../..", Version: "v1", Commit: commit}, archs: []string{"amd64"}}
	common, err := s.common(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	built, err := programs(t.Context(), "amd64", s.Ours(), s.Fleet())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range append(common, built...) {
		info, err := os.Stat(filepath.Join(root, f.path))
		if err != nil || info.Mode()&(fs.ModePerm|fs.ModeSticky) != f.mode || info.IsDir() != (f.data == nil) {
			t.Errorf("%s: %v, %v", f.path, info, err)
			continue
		}
		if got, err := os.ReadFile(filepath.Join(root, f.path)); f.data != nil && (err != nil || string(got) != string(f.data)) {
			t.Errorf("%s: %d bytes, want %d, %v", f.path, len(got), len(f.data), err)
		}
	}
}

// TestArchiveEnds wants the end of a tar: two blocks of zeros.
func TestArchiveEnds(t *testing.T) {
	p, err := archive([]file{{"a", 0o644, []byte("x")}}, time.Unix(1700000000, 0))
	if err != nil || len(p) != 4*512 || !bytes.Equal(p[2*512:], make([]byte, 2*512)) {
		t.Errorf("%d bytes, %v", len(p), err)
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
	for _, args := range [][]string{{}, {"-o", "a", "-root", "b"}, {"-root", "a"}, {"-o", "a", "b"}, {"-x"}, {"-demo", "-root", "a"}} {
		if err := run(t.Context(), args); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}

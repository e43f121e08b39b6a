package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/ballast-dev/ballast/contrib/release/build"
	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
)

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func git(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main", "-c", "safe.directory=*"}, args...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
}

// TestReproducible builds what a release has, except for the image, in two clones of the commit that is checked
// out, in an environment of other wishes and with other tags: all bytes are equal. TestImage is for the image.
func TestReproducible(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ok(t, err)
	keyFile := filepath.Join(t.TempDir(), "key.pem")
	der, err := x509.MarshalPKCS8PrivateKey(key)
	ok(t, err)
	ok(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))

	one := writeClone(t, "a", keyFile)
	t.Setenv("GOFLAGS", "-tags=other")
	t.Setenv("GOAMD64", "v3")
	t.Setenv("SOURCE_DATE_EPOCH", "1")
	two := writeClone(t, "b/longer", keyFile, "v0.0.9")
	if len(one) != 8 {
		t.Errorf("%d files", len(one))
	}
	for name, p := range one {
		if !bytes.Equal(p, two[name]) {
			t.Errorf("%s is not the same in another clone", name)
		}
	}
	checkTarball(t, one[fmt.Sprintf("ballast_0.1.0_linux_%s.tar.gz", runtime.GOARCH)])
	checkSigned(t, one, &key.PublicKey)
	checkBOM(t, one["ballast_0.1.0_sbom.cdx.json"])
	if chart := untar(t, one["ballast-0.1.0.tgz"]); !strings.HasPrefix(string(chart["ballast/Chart.yaml"]), "apiVersion: v2\n") {
		t.Errorf("the chart has %d files", len(chart))
	}
}

// writeClone clones the repository to a directory of this name, with tags, and writes a release.
func writeClone(t *testing.T, name, key string, tags ...string) map[string][]byte {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, name)
	git(t, "../..", "clone", "--quiet", ".", source)
	for _, tag := range tags {
		git(t, source, "tag", tag)
	}
	commit, err := build.CommitOf(t.Context(), source)
	ok(t, err)
	r := &release{
		Build: build.Build{Source: source, Version: "v0.1.0", Commit: commit},
		out:   t.TempDir(), work: t.TempDir(), archs: []string{runtime.GOARCH}, key: key,
		only: []string{"tar", "deb", "rpm", "chart", "sbom", "sums"},
	}
	ok(t, r.write(t.Context()))
	files := map[string][]byte{}
	entries, err := os.ReadDir(r.out)
	ok(t, err)
	for _, e := range entries {
		files[e.Name()], err = os.ReadFile(filepath.Join(r.out, e.Name()))
		ok(t, err)
	}
	return files
}

func untar(t *testing.T, p []byte) map[string][]byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(p))
	ok(t, err)
	files := map[string][]byte{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		ok(t, err)
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatalf("%s: %v", h.Name, err)
		}
	}
}

// checkTarball runs the program in a tarball, and looks for the files beside it.
func checkTarball(t *testing.T, p []byte) {
	t.Helper()
	files, top := untar(t, p), fmt.Sprintf("ballast_0.1.0_linux_%s/", runtime.GOARCH)
	for name, has := range map[string]string{
		"LICENSE": "Apache License", "NOTICES": "containerd/v2 v2.", "CHANGELOG.md": "# Changes", "man/ballastd.8": ".TH", "completion/zsh": "#compdef ballast",
		"systemd/ballastd.service": "ExecStart=/usr/local/bin/ballastd", "kubernetes/pod.yaml": "kind: Pod", "ballastd": "ELF", "ballast-keyless": "ELF",
		"ballast-demo": "ELF", "NOTICES-demo": "distribution/distribution/v3 v3.",
	} {
		if !strings.Contains(string(files[top+name]), has) {
			t.Errorf("%s: %d bytes, without %q", name, len(files[top+name]), has)
		}
	}
	program := filepath.Join(t.TempDir(), "ballast")
	ok(t, os.WriteFile(program, files[top+"ballast"], 0o755))
	out, err := exec.Command(program, "version", "-o", "json").Output()
	ok(t, err)
	var v struct {
		Client struct{ Version, Revision, Date string }
	}
	ok(t, json.Unmarshal(out, &v))
	if v.Client.Version != "v0.1.0" || len(v.Client.Revision) != 40 || len(v.Client.Date) != len("2026-11-23T00:00:00Z") {
		t.Errorf("the program says %+v", v)
	}
}

// checkSigned compares the digests with the files, and verifies their signature.
func checkSigned(t *testing.T, files map[string][]byte, key *ecdsa.PublicKey) {
	t.Helper()
	sums := map[string]string{}
	for line := range strings.Lines(string(files[sumsFile])) {
		sum, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		sums[name] = sum
	}
	var b struct {
		VerificationMaterial struct{ PublicKey struct{ Hint []byte } }
		MessageSignature     struct {
			MessageDigest struct{ Digest []byte }
			Signature     []byte
		}
	}
	ok(t, json.Unmarshal(files[sumsFile+".sigstore.json"], &b))
	sum := sha256.Sum256(files[sumsFile])
	if !bytes.Equal(b.MessageSignature.MessageDigest.Digest, sum[:]) || !ecdsa.VerifyASN1(key, sum[:], b.MessageSignature.Signature) {
		t.Errorf("the signature is not of %s", sumsFile)
	}
	block, _ := pem.Decode(files["ballast.pub"])
	hint := sha256.Sum256(block.Bytes)
	if public, err := x509.ParsePKIXPublicKey(block.Bytes); err != nil || !key.Equal(public) || !bytes.Equal(b.VerificationMaterial.PublicKey.Hint, hint[:]) {
		t.Errorf("the public key is another: %v", err)
	}
	unsigned := []string{sumsFile, sumsFile + ".sigstore.json", "ballast.pub"}
	for name, p := range files {
		if got := fmt.Sprintf("%x", sha256.Sum256(p)); sums[name] != got && !slices.Contains(unsigned, name) {
			t.Errorf("%s: digest %q, want %q", name, sums[name], got)
		}
	}
}

// checkBOM reads the bill of materials.
func checkBOM(t *testing.T, p []byte) {
	t.Helper()
	var bom cdx.BOM
	ok(t, cdx.NewBOMDecoder(bytes.NewReader(p), cdx.BOMFileFormatJSON).Decode(&bom))
	var names []string
	for _, c := range *bom.Components {
		names = append(names, c.Name)
		if c.Licenses == nil || c.Version == "" || c.PackageURL != "pkg:golang/"+c.Name+"@"+c.Version {
			t.Errorf("component %+v", c)
		}
	}
	for _, want := range []string{"std", "github.com/containerd/containerd/v2", "go.etcd.io/bbolt", "sigs.k8s.io/controller-runtime"} {
		if !slices.Contains(names, want) {
			t.Errorf("no %s in %q", want, names)
		}
	}
	if bom.SpecVersion != cdx.SpecVersion1_6 || bom.Metadata.Component.Version != "v0.1.0" || len((*bom.Dependencies)) != 1 {
		t.Errorf("bill of materials: %s of %+v", bom.SpecVersion, bom.Metadata.Component)
	}
}

// TestKeys parses private keys in the forms that cosign and openssl write.
func TestKeys(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ok(t, err)
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	ok(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	ok(t, err)
	foreign, err := x509.MarshalPKCS8PrivateKey(other)
	ok(t, err)
	sec1, err := x509.MarshalECPrivateKey(key)
	ok(t, err)
	sealed, err := encrypted.Encrypt(pkcs8, []byte("open"))
	ok(t, err)
	for _, tt := range []struct {
		name, kind, password, fails string
		der                         []byte
	}{
		{"cosign", "ENCRYPTED SIGSTORE PRIVATE KEY", "open", "", sealed},
		{"old cosign", "ENCRYPTED COSIGN PRIVATE KEY", "open", "", sealed},
		{"wrong password", "ENCRYPTED SIGSTORE PRIVATE KEY", "", "COSIGN_PASSWORD", sealed},
		{"openssl", "EC PRIVATE KEY", "", "", sec1},
		{"PKCS 8", "PRIVATE KEY", "", "", pkcs8},
		{"RSA", "PRIVATE KEY", "", "not an EC key", foreign},
		{"a certificate", "CERTIFICATE", "", "CERTIFICATE", pkcs8},
	} {
		got, err := parseKey(pem.EncodeToMemory(&pem.Block{Type: tt.kind, Bytes: tt.der}), []byte(tt.password))
		if tt.fails == "" && (err != nil || !key.Equal(got)) || tt.fails != "" && (err == nil || !strings.Contains(err.Error(), tt.fails)) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if _, err := parseKey([]byte("x"), nil); err == nil {
		t.Error("no error for what is not PEM")
	}
}

// TestCheck refuses to release what is not a commit of that version.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		ok(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		ok(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	want := func(version, part string) {
		t.Helper()
		out := filepath.Join(t.TempDir(), "out")
		err := run(t.Context(), []string{"-source", dir, "-o", out, "-version", version})
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: got %v, want %q", version, err, part)
		}
		if _, err := os.Stat(out); err == nil {
			t.Errorf("%s: something was written", version)
		}
	}
	write(chartDir+"/Chart.yaml", "name: ballast\nversion: 0.1.0\nappVersion: v0.1.0\n")
	write("CHANGELOG.md", "# Changes\n")
	git(t, dir, "init", "--quiet")
	git(t, dir, "add", ".")
	git(t, dir, "commit", "--quiet", "-m", "x")
	want("v0.2.0", "Chart.yaml has no line \"version: 0.2.0\"")
	want("v0.1.0", "## v0.1.0")
	for _, bad := range []string{"", "0.1.0", "v0.1", "v01.0.0", "abc1234", "v0.1.0-", "v0.1.0+b"} {
		want(bad, "make release VERSION=v0.1.0")
	}
	write("new", "")
	want("v0.1.0", "git status")
}

// TestCheckKey refuses to sign a release with a key that the documents do not name.
func TestCheckKey(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ok(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	ok(t, err)
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	ok(t, err)
	dir := t.TempDir()
	r := release{Build: build.Build{Source: dir, Version: "v0.1.0"}, key: filepath.Join(t.TempDir(), "key.pem")}
	ok(t, os.WriteFile(r.key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	for name, text := range map[string]string{
		chartDir + "/Chart.yaml": "name: ballast\nversion: 0.1.0\nappVersion: v0.1.0\n", "CHANGELOG.md": "# Changes\n\n## v0.1.0\n",
		fingerprinted[0]: "# Security\n", fingerprinted[1]: "# Install\n",
	} {
		ok(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		ok(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	// As in install.md.
	cmd := exec.Command("openssl", "pkey", "-pubin", "-outform", "DER")
	cmd.Stdin = bytes.NewReader(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
	if der, err := cmd.Output(); !errors.Is(err, exec.ErrNotFound) && !bytes.Equal(der, public) {
		t.Errorf("openssl has another key: %v", err)
	}
	for _, name := range fingerprinted {
		if err := r.check(); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), fingerprint(public)) {
			t.Errorf("without the fingerprint in %s: %v", name, err)
		}
		other := strings.Repeat("a", 64)
		ok(t, os.WriteFile(filepath.Join(dir, name), []byte(other+"\n"), 0o644))
		if err := r.check(); err == nil {
			t.Errorf("released with another fingerprint in %s", name)
		}
		ok(t, os.WriteFile(filepath.Join(dir, name), []byte("The key has "+fingerprint(public)+".\n"), 0o644))
	}
	ok(t, r.check())
}

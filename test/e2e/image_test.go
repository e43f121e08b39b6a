package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestImage imports the container image into a stock containerd and runs both programs. Those for
// arm64, which this machine may not run, are only inspected.
func TestImage(t *testing.T) {
	n := node.StartNode(t, node.Options{Stock: true})
	if out := n.Ctr("images", "import", "--platform", "linux/amd64", builtImage(t, "one")+".tar"); out.Err != nil {
		t.Fatalf("import: %v\n%s", out.Err, out.Output())
	}
	const ref = "ghcr.io/ballast-dev/ballast:v0.1.0-one"
	for i, tt := range []struct {
		argv []string
		want string
	}{
		{[]string{"ballast", "version"}, "v0.1.0-one"},
		{[]string{"ballastd", "--help"}, "ballastd [flags]"},
		{[]string{"ballastd", "version"}, "v0.1.0-one"},
	} {
		out := printed(tt.want, func(try string) node.Result {
			return n.Ctr(append([]string{"run", "--rm", "--read-only", ref, string(rune('a'+i)) + try}, tt.argv...)...)
		})
		if !strings.Contains(out.Output(), tt.want) || tt.argv[0] == "ballastd" && out.Err != nil {
			t.Errorf("%q: %v\n%s", tt.argv, out.Err, out.Output())
		}
	}
	dockerfile, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		a := node.Layout(t, builtImage(t, "one"), arch)
		for _, name := range []string{"usr/local/bin/ballast", "usr/local/bin/ballastd", "usr/local/bin/ballast-keyless"} {
			f, err := elf.NewFile(bytes.NewReader(member(t, a, name)))
			if err != nil {
				t.Errorf("%s: %v", arch, err)
				continue
			}
			libraries, err := f.ImportedLibraries()
			if f.Machine != machine || len(libraries) > 0 || err != nil {
				t.Errorf("%s, %s: %v, libraries %q, %v", arch, name, f.Machine, libraries, err)
			}
		}
		if roots := member(t, a, "etc/ssl/certs/ca-certificates.crt"); bytes.Count(roots, []byte("BEGIN CERTIFICATE")) < 50 {
			t.Errorf("%s: certificates of %d bytes", arch, len(roots))
		}
		var m ocispec.Manifest
		var config ocispec.Image
		if err := errors.Join(json.Unmarshal(a.Manifest, &m), json.Unmarshal(a.Blobs[m.Config.Digest], &config)); err != nil {
			t.Fatal(err)
		}
		for _, line := range []string{"ENV " + config.Config.Env[0], "CMD [\"" + config.Config.Cmd[0] + "\"]", "WORKDIR " + config.Config.WorkingDir} {
			if !slices.Contains(strings.Split(string(dockerfile), "\n"), line) {
				t.Errorf("the Dockerfile has no %q", line)
			}
		}
		if config.Architecture != arch || config.Config.User != "" || len(config.Config.Entrypoint) > 0 {
			t.Errorf("%s: %+v", arch, config)
		}
	}
}

// member returns a file of an image.
func member(t *testing.T, a node.Artifact, name string) []byte {
	t.Helper()
	var m ocispec.Manifest
	if err := json.Unmarshal(a.Manifest, &m); err != nil {
		t.Fatal(err)
	}
	for _, l := range m.Layers {
		z, err := gzip.NewReader(bytes.NewReader(a.Blobs[l.Digest]))
		if err != nil {
			t.Fatal(err)
		}
		files := tar.NewReader(z)
		for {
			h, err := files.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if h.Name == name {
				p, err := io.ReadAll(files)
				if err != nil {
					t.Fatal(err)
				}
				return p
			}
		}
	}
	t.Fatalf("no %s in the image", name)
	return nil
}

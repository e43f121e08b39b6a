package e2e

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"
	"go.yaml.in/yaml/v3"
)

// TestTalos has nobody print what the machine configuration of Talos needs: standard output has nothing but YAML, whose
// contents are TOML.
func TestTalos(t *testing.T) {
	dir, err := os.MkdirTemp("", "t") // that of the test is for root only
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program, err := os.ReadFile(node.Binary(t, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(filepath.Join(dir, "ballast"), program, 0o755)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "ballast"), "setup", "--distro", "talos", "--containerd-version", "2.3", "--runtime-handler", "ballast", "--registry", "ghcr.io")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	type document struct {
		Kind, Content string
		Machine       struct {
			Files []struct {
				Path, Op, Content string
				Permissions       int
			}
		}
	}
	var files []string
	for d := yaml.NewDecoder(&stdout); ; {
		var doc document
		if err := d.Decode(&doc); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		contents := map[string]string{doc.Kind: doc.Content}
		for _, f := range doc.Machine.Files {
			contents[f.Path] = f.Content
		}
		for name, text := range contents {
			if text == "" {
				continue
			}
			files = append(files, name)
			var tables map[string]any
			if err := toml.Unmarshal([]byte(text), &tables); err != nil || len(tables) == 0 {
				t.Errorf("%s: %v in\n%s", name, err, text)
			}
		}
	}
	if d := cmp.Diff([]string{"CRICustomizationConfig", "/var/lib/ballast-hosts/ghcr.io/hosts.toml"}, files); d != "" {
		t.Errorf("documents (-want +got):\n%s", d)
	}
}

package test

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestContainerdVersions checks that there is a line for each minor release that the documentation
// names, and that the last one is the version in the product's go.mod.
func TestContainerdVersions(t *testing.T) {
	var minors []string
	var last string
	for line := range strings.Lines(read(t, "containerd.txt")) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		if len(f) != 3 {
			t.Fatalf("%q: got %d words, want module, version and checksum", line, len(f))
		}
		last = f[0] + " v" + f[1]
		minors = append(minors, f[1][:strings.LastIndexByte(f[1], '.')])
	}
	if diff := cmp.Diff(minors, []string{"1.7", "2.0", "2.1", "2.2", "2.3", "2.4"}); diff != "" {
		t.Errorf("minor releases (got, want):\n%s", diff)
	}
	out, err := exec.Command("go", "list", "-m", "github.com/containerd/containerd/v2").Output()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := last, string(bytes.TrimSpace(out)); got != want {
		t.Errorf("the last line is %s, go.mod has %s", got, want)
	}
}

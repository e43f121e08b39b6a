package object

import (
	"os"
	"slices"
	"testing"

	"github.com/ballast-dev/ballast/store/internal/meta"
)

// TestPrivateOf returns nobody, not everybody, for a file whose attributes cannot be read.
func TestPrivateOf(t *testing.T) {
	plain, err := os.Create(t.TempDir() + "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	without, err := os.Open("/proc/self/status") // procfs has no such attributes
	if err != nil {
		t.Fatal(err)
	}
	defer without.Close()
	if got := privateOf(plain); got != nil {
		t.Errorf("a public file: %q", got)
	}
	if got := privateOf(without); !slices.Equal(got, []string{meta.Nobody}) {
		t.Errorf("a file without readable attributes: %q", got)
	}
}

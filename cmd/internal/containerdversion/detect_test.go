package containerdversion

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
)

// TestDetectProgram runs programs that print what containerd does. The end-to-end tests query a
// running one.
func TestDetectProgram(t *testing.T) {
	for name, tt := range map[string]struct {
		prints string
		want   Version // zero if not found
	}{
		"release":      {"containerd github.com/containerd/containerd/v2 v2.3.7 0123abc", Version{2, 3}},
		"distribution": {"containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-6", Version{1, 7}},
		"own build":    {"containerd github.com/containerd/containerd/v2 unknown", Version{}},
		"nothing":      {"", Version{}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("PATH", dir+":/bin:/usr/bin")
			script := "#!/bin/sh\necho '" + tt.prints + "'\n"
			if err := os.WriteFile(filepath.Join(dir, "containerd"), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			got, err := Detect(t.Context(), filepath.Join(dir, "none.sock"))
			if got != tt.want || errdefs.IsNotFound(err) != (tt.want == Version{}) {
				t.Errorf("got %v, %v, want %v", got, err, tt.want)
			}
		})
	}
}

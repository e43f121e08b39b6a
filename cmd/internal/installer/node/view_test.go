package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/host/containerdversion"
)

// TestVersionOfProgram runs programs that print what containerd does. The end-to-end tests query a
// running one.
func TestVersionOfProgram(t *testing.T) {
	for name, tt := range map[string]struct {
		prints string
		want   containerdversion.Version // zero if not found
	}{
		"release":      {"containerd github.com/containerd/containerd/v2 v2.3.7 0123abc", containerdversion.Version{Major: 2, Minor: 3}},
		"distribution": {"containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-6", containerdversion.Version{Major: 1, Minor: 7}},
		"own build":    {"containerd github.com/containerd/containerd/v2 unknown", containerdversion.Version{}},
		"nothing":      {"", containerdversion.Version{}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("PATH", dir+":/bin:/usr/bin")
			script := "#!/bin/sh\necho '" + tt.prints + "'\n"
			if err := os.WriteFile(filepath.Join(dir, "containerd"), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			c := config.Default()
			c.Containerd.Address = filepath.Join(dir, "none.sock")
			v, err := Look(t.Context(), Options{Config: c, Main: filepath.Join(dir, "none.toml")})
			if err != nil {
				t.Fatal(err)
			}
			want := tt.want
			if want == (containerdversion.Version{}) {
				want = containerdversion.Newest
			}
			if v.Version != want || (v.Unknown != nil) != (tt.want == containerdversion.Version{}) {
				t.Errorf("got %v, %v, want %v", v.Version, v.Unknown, tt.want)
			}
		})
	}
}

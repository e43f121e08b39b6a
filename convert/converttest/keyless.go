package converttest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Keyless builds ballast-keyless in a directory that all users can enter, and returns its path.
func Keyless(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-trimpath", "-o", dir, "github.com/ballast-dev/ballast/cmd/ballast-keyless")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build ballast-keyless: %v\n%s", err, out)
	}
	return filepath.Join(dir, "ballast-keyless")
}

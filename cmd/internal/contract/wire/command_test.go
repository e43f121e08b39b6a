package wire

import (
	"os/exec"
	"testing"
)

// TestCommand has a shell read names that others have chosen.
func TestCommand(t *testing.T) {
	for _, name := range []string{"", "ghcr.io/a/b:1@sha256", "it's", "$(touch /tmp/x)", "`id`; rm -rf /", "a\nb", `back\slash "x"`, "~", "*"} {
		out, err := exec.Command("sh", "-c", Command("printf", "%s", name)).Output()
		if err != nil || string(out) != name {
			t.Errorf("%q is read as %q, %v", name, out, err)
		}
	}
}

package modelname_test

import (
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/containerd/errdefs"
)

func TestParse(t *testing.T) {
	for name, want := range map[string]bool{
		"ghcr.io/a/b:v1": true, "sha256:" + strings.Repeat("a", 64): true, "0123ab": true, "llama": false, "": false, "0123": false,
		"sha256:x": false, strings.Repeat("a", 65): false,
	} {
		if n, err := modelname.Parse(name); (err == nil) != want || err != nil && !errdefs.IsInvalidArgument(err) || n.String() != name {
			t.Errorf("Parse(%q): got %v, want good: %v", name, err, want)
		}
	}
}

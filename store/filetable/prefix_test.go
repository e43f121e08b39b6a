package filetable

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

func TestCleanPrefix(t *testing.T) {
	for p, want := range map[string]string{
		"": "", ".": "", "/": "", "./": "", "models": "models", "/models/": "models", "a/./b//c": "a/b/c", strings.Repeat("x", maxPrefix): strings.Repeat("x", maxPrefix),
	} {
		if got, err := CleanPrefix(p); got != want || err != nil {
			t.Errorf("%q: got %q, %v, want %q", p, got, err, want)
		}
	}
	for _, p := range []string{"..", "../a", "a/../..", `..\a`, "a\nb", "a\xff", ".wh.a", "a/.wh.b", "a/.wh..wh..opq", strings.Repeat("x", maxPrefix+1)} {
		if got, err := CleanPrefix(p); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: got %q, %v, want an invalid argument", p, got, err)
		}
	}
}

// TestPrefix validates the prefix of a table, and places its files.
func TestPrefix(t *testing.T) {
	table := Table{Version: Version, Origin: Origin{Format: "files", Digest: digest.FromString("origin"), Mapping: 1}}
	for _, p := range []string{"models/", "/models", "a//b", "..", ".wh.a", "."} {
		table.Origin.Prefix = p
		if err := table.Validate(); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: got %v, want an invalid argument", p, err)
		}
	}
	table.Origin.Prefix = "models/chat"
	if err := table.Validate(); err != nil {
		t.Error(err)
	}
	files := []File{{Path: "a", Type: TypeDir, Mode: 0o755}, {Path: "a/b", Type: TypeSymlink, Target: "../c"}, {Path: "c", Type: TypeReg, Size: 5}}
	given := slices.Clone(files)
	placed, err := Place(table.Origin.Prefix, files)
	if err != nil || len(placed) != len(files) || placed[1].Path != "models/chat/a/b" || placed[1].Target != "../c" || placed[2].Size != 5 {
		t.Errorf("got %+v, %v", placed, err)
	}
	if !slices.Equal(files, given) {
		t.Errorf("the files of the table were changed: %+v", files)
	}
	for _, deep := range []string{strings.Repeat("d/", maxDepth-2) + "f", strings.Repeat(strings.Repeat("n", 200)+"/", 20) + strings.Repeat("n", 70)} {
		if _, err := CleanPath(deep); err != nil {
			t.Fatal(err)
		}
		if _, err := Place("models/chat", []File{{Path: deep}}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%d bytes: got %v, want an invalid argument", len(deep), err)
		}
	}
}

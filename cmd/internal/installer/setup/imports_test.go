package setup

import (
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

const ours = "/etc/containerd/conf.d/*.toml"

// TestImports adds our import to configurations, and removes it again.
func TestImports(t *testing.T) {
	for name, tt := range map[string]struct{ text, want, back string }{
		"empty":         {"", "imports = [\"" + ours + "\"]\n", "imports = []\n"},
		"after version": {"# x\nversion = 3 # y\n[a]\nb = 1\n", "# x\nversion = 3 # y\nimports = [\"" + ours + "\"]\n[a]\nb = 1\n", "# x\nversion = 3 # y\nimports = []\n[a]\nb = 1\n"},
		"no line end":   {"version = 3", "version = 3\nimports = [\"" + ours + "\"]\n", "version = 3\nimports = []\n"},
		"only tables":   {"[a]\nversion = 1\nimports = ['/x']\n", "imports = [\"" + ours + "\"]\n[a]\nversion = 1\nimports = ['/x']\n", "imports = []\n[a]\nversion = 1\nimports = ['/x']\n"},
		"empty list":    {"imports = [ ]\n", "imports = [\"" + ours + "\" ]\n", "imports = [ ]\n"},
		"one":           {"imports = ['/a/*.toml'] # z\n", "imports = ['/a/*.toml', \"" + ours + "\"] # z\n", "imports = ['/a/*.toml'] # z\n"},
		"trailing":      {"imports = [\n  \"/a\",\n  \"/b\", # b\n]\nversion = 2\n", "imports = [\n  \"/a\",\n  \"/b\", \"" + ours + "\", # b\n]\nversion = 2\n", "imports = [\n  \"/a\",\n  \"/b\", # b\n]\nversion = 2\n"},
		"comment":       {"imports = [ # [\"/no\"]\n  \"/a\" # a\n]\n", "imports = [ # [\"/no\"]\n  \"/a\", \"" + ours + "\" # a\n]\n", "imports = [ # [\"/no\"]\n  \"/a\" # a\n]\n"},
		"there already": {"imports = [\"" + ours + "\"]\n", "imports = [\"" + ours + "\"]\n", "imports = []\n"},
		"quoted key":    {"\"imports\" = []\n", "\"imports\" = [\"" + ours + "\"]\n", "\"imports\" = []\n"},
		"first of two":  {"imports = [\"" + ours + "\", \"/b\"]\n", "imports = [\"" + ours + "\", \"/b\"]\n", "imports = [\"/b\"]\n"},
		"line ends":     {"version = 2\r\n[a]\r\n", "version = 2\r\nimports = [\"" + ours + "\"]\n[a]\r\n", "version = 2\r\nimports = []\n[a]\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := addImport(tt.text, ours)
			if d := cmp.Diff(got, tt.want); d != "" || err != nil {
				t.Fatalf("%v, added (got, want):\n%s", err, d)
			}
			if again, err := addImport(got, ours); again != got || err != nil {
				t.Errorf("added twice: %q, %v", again, err)
			}
			got, err = dropImport(got, ours)
			if d := cmp.Diff(got, tt.back); d != "" || err != nil {
				t.Errorf("%v, dropped (got, want):\n%s", err, d)
			}
		})
	}
}

// Configurations that cannot be read remain unchanged.
func TestImportsRefused(t *testing.T) {
	for _, text := range []string{"version = ", "imports = \"/a\"\n", "[a\n", "imports = [[\"a\"]]\n", "imports = [1]\n"} {
		if got, err := addImport(text, ours); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%q: got %q, %v, want ErrFailedPrecondition", text, got, err)
		}
	}
}

// FuzzImports wants every edit either refused or changing nothing else; addImport itself compares.
func FuzzImports(f *testing.F) {
	for _, s := range []string{"", "version = 3\nimports = [\"/a\", ]\n[a]\nb = 1\n", "imports = [ # x\n]\n", "x.y = 1\n'imports' = ['''/a''']\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := addImport(text, ours)
		if err != nil {
			return
		}
		at, err := findImports(got)
		if err != nil || len(at.values) == 0 {
			t.Fatalf("%q became %q: %v, imports %q", text, got, err, at.values)
		}
		back, err := dropImport(got, ours)
		if err != nil {
			return
		}
		if _, err := addImport(back, ours); err != nil {
			t.Fatalf("%q became %q and %q: %v", text, got, back, err)
		}
	})
}

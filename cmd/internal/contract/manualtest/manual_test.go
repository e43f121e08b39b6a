package manualtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

func tree() *cobra.Command {
	root := &cobra.Command{Use: "tool", Short: "do things"}
	root.PersistentFlags().Bool("debug", false, "log more")
	sub := &cobra.Command{
		Use: "get NAME", Short: "get a thing", Example: "  tool get a_b\n  tool get c",
		Long: "Get a thing, by *name*.\n\nNAME  any\n.dot  a file\n\n.first a request\\.",
		Run:  func(*cobra.Command, []string) {},
	}
	sub.Flags().StringP("form", "f", "x", "the `FORM` of it")
	root.AddCommand(sub, &cobra.Command{Use: "secret", Hidden: true, Run: func(*cobra.Command, []string) {}})
	return root
}

func TestMarkdown(t *testing.T) {
	want := strings.ReplaceAll(`## tool

'''text
tool COMMAND [flags]
'''

Do things.

'''text
      --debug   log more
'''

### tool get

'''text
tool get NAME [flags]
'''

Get a thing, by \*name\*.

'''text
NAME  any
.dot  a file
'''

.first a request\.

'''sh
tool get a_b
tool get c
'''

'''text
  -f, --form FORM   the FORM of it (default "x")
'''
`, "'''", "```")
	if diff := cmp.Diff(markdown(tree()), want); diff != "" {
		t.Errorf("(got, want):\n%s", diff)
	}
}

// TestMan looks for text that roff would read as a request or an escape.
func TestMan(t *testing.T) {
	page := man(tree(), 8, "v1.2.3")
	for _, want := range []string{
		".TH \"TOOL\" 8 \"\" \"ballast v1.2.3\"\n", ".SH NAME\ntool \\- do things\n", ".SS get NAME [flags]\n",
		".P\n.nf\nNAME  any\n\\&.dot  a file\n.fi\n", "\n\\&.first a request\\e.\n",
		".TP\n\\fB\\-f, \\-\\-form\\fR FORM\nthe FORM of it\n", ".nf\n  tool get a_b\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in:\n%s", want, page)
		}
	}
	if strings.Contains(page, "secret") {
		t.Errorf("a hidden command in:\n%s", page)
	}
}

func TestUpdate(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("# T\n<!-- begin a -->\n\nold\n\n<!-- end a -->\nrest\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Update(page, "a", "old\n", false); err != nil {
		t.Error(err)
	}
	if err := Update(page, "a", "new\n", false); err == nil || !strings.Contains(err.Error(), "make docs") {
		t.Errorf("a stale page: %v", err)
	}
	if err := Update(page, "b", "new\n", true); err == nil {
		t.Error("a part that is not there was written")
	}
	if err := Update(page, "a", "new\n", true); err != nil {
		t.Error(err)
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(got), "# T\n<!-- begin a -->\n\nnew\n\n<!-- end a -->\nrest\n"); diff != "" {
		t.Errorf("(got, want):\n%s", diff)
	}
}

func TestTable(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("# A\n\n| x | y |\n|---|---|\n\n# B\n\n| a | b | c |\n|---|---|---|\n| `A` | of [b](c.md#d) | e |\n| F | - | e |\n\n| G | h |\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := table(page, "# B\n", "B")
	if diff := cmp.Diff(Section{"B", [][2]string{{"A", "of b"}, {"F", "-"}}}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if _, err := table(page, "| G", "B"); err == nil {
		t.Error("no table: no error")
	}
	if man := man(tree(), 8, "v1", got); !strings.HasSuffix(man, ".SH B\n.TP\n\\fBA\\fR\nof b\n.TP\n\\fBF\\fR\n\\-\n") {
		t.Errorf("got %q", man)
	}
}

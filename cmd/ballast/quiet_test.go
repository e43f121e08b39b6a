package main

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// quietly is what each command prints with --quiet, one a line.
var quietly = map[string]string{
	"ls": "digests", "inspect": "the digest", "why": "the digest", "digest": "the digest", "convert": "the digest", "seed": "the digest",
	"prefetch": "digests", "pull": "digests", "import": "digests", "import ollama": "digests", "rm": "digests, or names that were removed",
	"status": "names of running downloads", "top": "names of running downloads", "gc": "names of models that lose files",
	"pin": "pins", "pin ls": "pins", "unpin": "pins", "mount": "the directory", "mount ls": "directories", "path": "the directory", "resolve": "the directory",
	"unmount": "nothing", "pause": "nothing", "resume": "nothing", "record": "nothing", "tables push": "nothing", "export": "digests", "setup": "nothing", "config rotate-ca": "nothing",
	"doctor": "what is wrong", "verify": "digests of damaged objects, snapshots, or signers", "version": "versions", "df": "an error",
	// What these print is a file, or the contract of another program.
	"config containerd": "a file", "config hosts": "a file", "docker-credential get": "a contract", "node ready": "a contract", "node touch": "a contract",
}

// TestQuiet: every command has a meaning of --quiet, no other flag is -q, and -a is --all wherever it is a flag.
func TestQuiet(t *testing.T) {
	var commands []string
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.Name() != "completion" && sub.Name() != "help" {
				visit(sub)
			}
		}
		path := strings.TrimPrefix(c.CommandPath(), "ballast ")
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if f.Shorthand == "q" || (f.Shorthand == "a") != (f.Name == "all") {
				t.Errorf("%s: -%s is --%s", path, f.Shorthand, f.Name)
			}
		})
		if c.HasParent() && (!c.HasSubCommands() || quietly[path] != "") {
			commands = append(commands, path)
		}
	}
	root := (&app{stdout: io.Discard, stderr: io.Discard}).root()
	visit(root)
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Shorthand == "a" {
			t.Errorf("-a is --%s", f.Name)
		}
	})
	for _, c := range commands {
		if quietly[c] == "" {
			t.Errorf("what %s prints with --quiet is in no list", c)
		}
	}
	for c := range quietly {
		if !slices.Contains(commands, c) {
			t.Errorf("there is no command %s", c)
		}
	}

	s := newSite(t)
	ref := s.add("team/model", 71, 1<<20)
	digest := strings.TrimSpace(s.ok(t, "digest", ref)) + "\n"
	lists := filepath.Join(s.dir, "list")
	if err := os.WriteFile(lists, []byte(ref+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ args, want string }{
		{"digest " + ref, digest}, {"digest -a " + ref, digest}, {"inspect --remote " + ref, digest}, {"convert " + ref + " oci:" + s.dir + "/o", "sha256:"},
		{"prefetch --dry-run " + ref, digest}, {"prefetch --file " + lists, digest}, {"pull " + ref, digest},
		{"ls", digest}, {"inspect " + ref, digest}, {"why " + ref, digest}, {"pin " + ref, ref + "\n"}, {"pin ls", ref + "\n"},
		{"status", ""}, {"top -n 1", ""}, {"mount ls", ""}, {"pause", ""}, {"resume", ""}, {"verify", ""}, {"gc --yes", ""},
		{"rm --dry-run " + ref, digest}, {"unpin " + ref, ref + "\n"}, {"gc --dry-run", ref + "\n"}, {"rm --now " + ref, digest},
	} {
		code, stdout, stderr := s.ballast(t.Context(), append([]string{"-q"}, strings.Fields(tt.args)...)...)
		if code != 0 || stderr != "" && !strings.HasPrefix(stderr, "ballast: warning: ") || stdout != tt.want && (tt.want != "sha256:" || !strings.HasPrefix(stdout, tt.want) || strings.Count(stdout, "\n") != 1) {
			t.Errorf("ballast -q %s: code %d, %q, %q; want %q", tt.args, code, stdout, stderr, tt.want)
		}
	}
}

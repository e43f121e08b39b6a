package manualtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// commands returns c and its subcommands that --help lists, in the same order.
func commands(c *cobra.Command) []*cobra.Command {
	c.InitDefaultHelpFlag()
	all := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" {
			all = append(all, commands(sub)...)
		}
	}
	return all
}

// description returns the description of a command in --help.
func description(c *cobra.Command) string {
	if c.Long != "" {
		return strings.TrimSpace(c.Long)
	}
	return strings.ToUpper(c.Short[:1]) + c.Short[1:] + "."
}

// useLine returns the usage line of a command.
func useLine(c *cobra.Command) string {
	if !c.Runnable() || c.HasParent() && c.HasAvailableSubCommands() { // a command with subcommands prints its help
		return c.CommandPath() + " COMMAND [flags]"
	}
	return c.UseLine()
}

// isText reports whether the lines of a paragraph must be kept: it is a list or a table in columns.
func isText(paragraph string) bool {
	return slices.ContainsFunc(strings.Split(paragraph, "\n"), func(line string) bool {
		return strings.Contains(strings.TrimRight(line, " "), "  ") || strings.HasPrefix(line, "\t")
	})
}

// Markdown returns a section for each command below root, and for root itself.
func Markdown(root *cobra.Command) string {
	var b strings.Builder
	for _, c := range commands(root) {
		fmt.Fprintf(&b, "\n%s %s\n\n", strings.Repeat("#", 2+min(depth(c), 2)), c.CommandPath())
		fmt.Fprintf(&b, "```text\n%s\n```\n", useLine(c))
		for p := range strings.SplitSeq(description(c), "\n\n") {
			if isText(p) {
				fmt.Fprintf(&b, "\n```text\n%s\n```\n", p)
			} else {
				fmt.Fprintf(&b, "\n%s\n", escape(p))
			}
		}
		if c.Example != "" {
			fmt.Fprintf(&b, "\n```sh\n%s\n```\n", unindent(c.Example))
		}
		if flags := flagsOf(c); flags.HasAvailableFlags() {
			fmt.Fprintf(&b, "\n```text\n%s\n```\n", strings.TrimRight(flags.FlagUsages(), "\n"))
		}
	}
	return strings.TrimPrefix(b.String(), "\n")
}

// flagsOf returns the flags of a command without --help, which every command has.
func flagsOf(c *cobra.Command) *pflag.FlagSet {
	flags := pflag.NewFlagSet(c.Name(), pflag.ContinueOnError)
	c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" && f.Name != "version" {
			flags.AddFlag(f)
		}
	})
	return flags
}

func depth(c *cobra.Command) int { return strings.Count(c.CommandPath(), " ") }

// escape returns a paragraph with the special characters of Markdown escaped.
func escape(p string) string {
	return strings.NewReplacer("*", `\*`, "_", `\_`, "<", `\<`, "|", `\|`, "[", `\[`).Replace(p)
}

func unindent(s string) string {
	lines := strings.Split(strings.Trim(s, "\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "  ")
	}
	return strings.Join(lines, "\n")
}

// Man returns a man page of a section, such as 8, with all commands of a program.
func Man(root *cobra.Command, section int, version string) string {
	var b strings.Builder
	name := root.Name()
	fmt.Fprintf(&b, ".TH %q %d \"\" %q\n.nh\n.ad l\n", strings.ToUpper(name), section, "ballast "+version)
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", name, roff(root.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n%s\n.SH DESCRIPTION\n", roff(useLine(root)))
	manText(&b, description(root))
	b.WriteString(".SH OPTIONS\n")
	manFlags(&b, flagsOf(root))
	if subs := commands(root)[1:]; len(subs) > 0 {
		b.WriteString(".SH COMMANDS\n")
		for _, c := range subs {
			fmt.Fprintf(&b, ".SS %s\n", roff(strings.TrimPrefix(useLine(c), name+" ")))
			manText(&b, description(c))
			manFlags(&b, flagsOf(c))
			if c.Example != "" {
				fmt.Fprintf(&b, ".P\nExample:\n.P\n.nf\n%s\n.fi\n", roff(c.Example))
			}
		}
	}
	return b.String()
}

func manText(b *strings.Builder, text string) {
	for p := range strings.SplitSeq(text, "\n\n") {
		if isText(p) {
			fmt.Fprintf(b, ".P\n.nf\n%s\n.fi\n", roff(p))
		} else {
			fmt.Fprintf(b, ".P\n%s\n", roff(p))
		}
	}
}

func manFlags(b *strings.Builder, flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		names := "--" + f.Name
		if f.Shorthand != "" {
			names = "-" + f.Shorthand + ", " + names
		}
		fmt.Fprintf(b, ".TP\n\\fB%s\\fR %s\n%s\n", roff(names), roff(kind), roff(usage))
	})
}

// roff returns a text with the requests and escapes of roff escaped.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

// Check is Update for the part of a page with the commands of root, under the name of root. If dir
// is not empty, it also writes the man page of root there.
func Check(page string, root *cobra.Command, write bool, dir, version string) error {
	if err := Update(page, root.Name(), Markdown(root), write); err != nil || dir == "" {
		return err
	}
	return os.WriteFile(filepath.Join(dir, root.Name()+".8"), []byte(Man(root, 8, version)), 0o644)
}

// Update compares the part of a page between the comments "begin name" and "end name" with want,
// and writes it if write is true. It returns an error if they differ, or if there is no such part.
func Update(page, name, want string, write bool) error {
	p, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	begin, end := fmt.Sprintf("<!-- begin %s -->\n\n", name), fmt.Sprintf("\n<!-- end %s -->\n", name)
	before, rest, ok := strings.Cut(string(p), begin)
	old, after, ok2 := strings.Cut(rest, end)
	switch {
	case !ok || !ok2:
		return fmt.Errorf("%s has no place for %s, between %q and %q", page, name, begin, end)
	case old == want:
		return nil
	case write:
		return os.WriteFile(page, []byte(before+begin+want+end+after), 0o644)
	}
	return errors.New(page + " is stale: run \"make docs\"")
}

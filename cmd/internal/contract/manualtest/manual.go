package manualtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// cobras are the subcommands whose text is cobra's.
var cobras = []string{"help", "completion"}

// commands returns c and its subcommands that --help lists, in the same order.
func commands(c *cobra.Command) []*cobra.Command {
	c.InitDefaultHelpFlag()
	all := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && !slices.Contains(cobras, sub.Name()) {
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
	if !c.Runnable() {
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

// markdown returns a section for each command below root, and for root itself.
func markdown(root *cobra.Command) string {
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
		if len(c.Groups()) > 0 {
			b.WriteString(groups(c))
		}
	}
	return strings.TrimPrefix(b.String(), "\n")
}

// groups returns a table of the groups of subcommands in --help.
func groups(c *cobra.Command) string {
	var b strings.Builder
	b.WriteString("\n| task | commands |\n|---|---|\n")
	for _, g := range c.Groups() {
		var links []string
		for _, sub := range c.Commands() {
			if sub.GroupID == g.ID && sub.IsAvailableCommand() && !slices.Contains(cobras, sub.Name()) {
				links = append(links, fmt.Sprintf("[`%s`](#%s)", sub.Name(), strings.ReplaceAll(sub.CommandPath(), " ", "-")))
			}
		}
		fmt.Fprintf(&b, "| %s | %s |\n", strings.TrimSuffix(g.Title, ":"), strings.Join(links, ", "))
	}
	return b.String()
}

// flagsOf returns the flags of a command without --help, which every command has, and --version of a program.
func flagsOf(c *cobra.Command) *pflag.FlagSet {
	flags := pflag.NewFlagSet(c.Name(), pflag.ContinueOnError)
	c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" && (f.Name != "version" || f.Value.Type() != "bool") {
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

// A Section is a section of a man page, with a list of names and what they mean.
type Section struct {
	Title string
	Items [][2]string
}

// table returns the first table after a line of a page as a section: the first two columns, as plain text.
func table(page, after, title string) (Section, error) {
	s := Section{Title: title}
	p, err := os.ReadFile(page)
	if err != nil {
		return s, err
	}
	_, rest, _ := strings.Cut(string(p), after)
	for line := range strings.Lines(rest) {
		cells := strings.Split(line, "|")
		switch {
		case len(cells) < 4 && len(s.Items) > 0:
			return s, nil
		case len(cells) >= 4 && strings.HasPrefix(cells[1], "-"): // below the titles
			s.Items = nil
		case len(cells) >= 4:
			s.Items = append(s.Items, [2]string{plain(cells[1]), plain(cells[2])})
		}
	}
	if len(s.Items) == 0 {
		return s, fmt.Errorf("%s has no table after %q", page, after)
	}
	return s, nil
}

// Sections returns the sections of the man page of the command, or of the daemon, that are not in --help. Most are
// tables in the documentation.
func Sections(docs string, command bool, neighbour string) (all []Section, err error) {
	for _, s := range []struct {
		page, after, title string
		both               bool
	}{
		{"commands.md", "## Exit codes\n", "EXIT STATUS", false}, {"configuration.md", "`ballastd config default`", "ENVIRONMENT", true},
		{"configuration.md", "`HTTPS_PROXY`", "FILES", true},
	} {
		if !command && !s.both {
			all = append(all, Section{s.title, [][2]string{{"0", "ended by a signal"}, {"1", "any other error"}, {"2", "wrong usage, or a configuration that cannot be read"}}})
			continue
		}
		t, err := table(filepath.Join(docs, s.page), s.after, s.title)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return append(all, Section{"SEE ALSO", [][2]string{{neighbour + ", ctr(8), journalctl(1)", "https://github.com/ballast-dev/ballast"}}}), nil
}

// link matches a link of Markdown.
var link = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)

func plain(cell string) string {
	return strings.TrimSpace(strings.ReplaceAll(link.ReplaceAllString(cell, "$1"), "`", ""))
}

// man returns a man page of a section, such as 8, with all commands of a program, and more sections.
func man(root *cobra.Command, section int, version string, more ...Section) string {
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
	for _, s := range more {
		fmt.Fprintf(&b, ".SH %s\n", s.Title)
		for _, i := range s.Items {
			fmt.Fprintf(&b, ".TP\n\\fB%s\\fR\n%s\n", roff(i[0]), roff(i[1]))
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
func Check(page string, root *cobra.Command, write bool, dir, version string, more ...Section) error {
	if err := Update(page, root.Name(), markdown(root), write); err != nil || dir == "" {
		return err
	}
	return os.WriteFile(filepath.Join(dir, root.Name()+".8"), []byte(man(root, 8, version, more...)), 0o644)
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

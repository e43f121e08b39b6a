package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
)

// An app is one run of the command line.
type app struct {
	stdout, stderr io.Writer
	width          int      // of the terminal, if stdout is not it; 0 if it is, or is none
	started        bool     // a command runs: the command line was valid
	args           []string // of the command line

	// Global flags.
	address    string
	configFile string
	quiet      bool
	debug      bool
}

// root returns the root of all commands.
func (a *app) root() *cobra.Command {
	c := &cobra.Command{
		Use:           "ballast COMMAND",
		Short:         "AI models as images of containerd",
		Long:          "ballast installs ballast on a node, downloads AI models ahead of their use, shows what is on the node, and\nchecks it. The daemon ballastd does the work.\n\nOn a terminal, tables fit its width: long names have a line of their own, and digests twelve digits, which all\ncommands take. Into a file or another program, each row is one line, in full.",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       wire.ThisVersion().Version,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			a.started = true
			return a.checkConfigFile()
		},
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return noCommand(c, args)
			}
			return c.Help()
		},
	}
	c.SetFlagErrorFunc(a.flagError)
	c.SetOut(a.stdout)
	c.SetErr(a.stderr)
	c.Flags().Bool("version", false, "print the version") // -v is that of "df"
	f := c.PersistentFlags()
	f.StringVar(&a.address, "address", "", "admin socket of ballastd (default: $BALLAST_ADMIN, then the configuration)")
	f.StringVar(&a.configFile, "config", "", "configuration file (default: $BALLAST_CONFIG, then "+config.DefaultPath+")")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "print only what names the results, one a line: digests, references, directories; no tables, progress or notes")
	f.BoolVar(&a.debug, "debug", false, "log every request")
	for _, g := range []struct {
		title string
		all   []*cobra.Command
	}{
		{"Install and check", []*cobra.Command{a.setupCommand(), a.doctorCommand(), a.configCommand(), a.versionCommand()}},
		{"Get models before they are used", []*cobra.Command{a.prefetchCommand(), a.pullCommand(), a.importCommand(), a.pauseCommand(), a.resumeCommand()}},
		{"See what is on the node", []*cobra.Command{a.lsCommand(), a.statusCommand(), a.topCommand(), a.inspectCommand(), a.whyCommand(), a.dfCommand()}},
		{"Keep, check and remove models", []*cobra.Command{a.pinCommand(), a.unpinCommand(), a.verifyCommand(), a.rmCommand(), a.gcCommand()}},
		{"Read models without containers", []*cobra.Command{a.mountCommand(), a.unmountCommand(), a.pathCommand()}},
		{"Publish models", []*cobra.Command{a.convertCommand(), a.digestCommand(), a.recordCommand(), a.tablesCommand()}},
		{"For other programs", []*cobra.Command{a.resolveCommand(), a.exportCommand(), a.seedCommand(), a.nodeCommand(), a.dockerCredentialCommand()}},
	} {
		c.AddGroup(&cobra.Group{ID: g.title, Title: g.title + ":"})
		for _, sub := range g.all {
			sub.GroupID = g.title
			c.AddCommand(sub)
		}
	}
	last := c.Groups()[len(c.Groups())-1].ID
	c.SetHelpCommand(helpCommand(c))
	c.SetHelpCommandGroupID(last)
	c.SetCompletionCommandGroupID(last)
	c.InitDefaultCompletionCmd()
	if completion, _, err := c.Find([]string{"completion"}); err == nil {
		completion.Short = "print a completion script for a shell"
	}
	// The second usage line of cobra says the same again.
	c.SetUsageTemplate(strings.Replace(c.UsageTemplate(), "{{if .HasAvailableSubCommands}}\n  {{.CommandPath}} [command]{{end}}", "", 1))
	return c
}

// helpCommand returns "help", which returns an error for an unknown command.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "help about a command",
		RunE: func(_ *cobra.Command, args []string) error {
			c, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return noCommand(c, rest)
			}
			c.InitDefaultHelpFlag()
			return c.Help()
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var names []string
			if c, rest, err := root.Find(args); err == nil && len(rest) == 0 {
				for _, sub := range c.Commands() {
					if sub.IsAvailableCommand() {
						names = append(names, sub.Name()+"\t"+sub.Short)
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// checkConfigFile returns a usage error if --config names a file that does not exist.
func (a *app) checkConfigFile() error {
	if a.configFile == "" {
		return nil
	}
	if _, err := os.Stat(a.configFile); errors.Is(err, fs.ErrNotExist) {
		return usage("--config: %w", err)
	}
	return nil
}

// load returns the configuration.
func (a *app) load() (*config.Config, error) {
	c, err := config.Load(a.configFile)
	if err != nil {
		return nil, &configError{err}
	}
	return c, nil
}

// client returns a client of the daemon. A configuration that cannot be read is ignored if the
// socket is given.
func (a *app) client() (*wire.Client, error) {
	if addr := config.AdminAddress(a.address, &config.Config{}); addr != "" {
		return wire.NewClient(addr), nil
	}
	c, err := a.load()
	if err != nil {
		return nil, err
	}
	return wire.NewClient(c.AdminAddress), nil
}

// log returns the logger of parts that run in this process.
func (a *app) log() *slog.Logger {
	level := slog.LevelWarn
	if a.debug {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: level}))
}

// asks returns the RunE of a command that sends requests to the daemon.
func (a *app) asks(f func(cmd *cobra.Command, c *wire.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.client()
		if err != nil {
			return err
		}
		defer c.Close()
		return f(cmd, c, args)
	}
}

// An output is the value of -o.
type output string

// The values of output.
const (
	outTable     output = "table"
	outJSON      output = "json"
	outCycloneDX output = "cyclonedx" // of commands that have it
)

// An outputValue is a pflag.Value.
type outputValue struct {
	*output
	values []string
}

// String implements pflag.Value.
func (v outputValue) String() string {
	if v.output == nil { // in a copy of pflag, for the default value
		return ""
	}
	return string(*v.output)
}

// Set implements pflag.Value.
func (v outputValue) Set(s string) error {
	if !slices.Contains(v.values, s) {
		return usage("%q is not one of %s", s, strings.Join(v.values, ", "))
	}
	*v.output = output(s)
	return nil
}

// Type implements pflag.Value.
func (v outputValue) Type() string { return strings.Join(v.values, "|") }

// outputFlag adds -o to a command. more are values besides those that all commands have.
func outputFlag(c *cobra.Command, more ...output) *output {
	o := outTable
	v := outputValue{&o, []string{string(outTable), string(outJSON)}}
	for _, m := range more {
		v.values = append(v.values, string(m))
	}
	c.Flags().VarP(v, "output", "o", "output format")
	flagValues(c, "output", v.values...)
	return &o
}

// flagValues sets the possible values of a flag, for shell completion.
func flagValues(c *cobra.Command, flag string, values ...string) {
	if err := c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic("ballast: internal error: " + err.Error()) // the flag exists
	}
}

// noArgs refuses arguments, and names the command that takes them, if there is one.
func noArgs(instead string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return nil
		case instead != "":
			return usage("%q takes no names; for one model: \"ballast %s %.300s\"", c.CommandPath(), instead, args[0])
		}
		return usage("%q takes no arguments, got %.300q", c.CommandPath(), args[0])
	}
}

// numberOfArgs checks the number of arguments; most is 0 for any number. text says what is expected.
func numberOfArgs(least, most int, text string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < least || most > 0 && len(args) > most {
			return errors.New(text)
		}
		return nil
	}
}

// modelArgs checks the number of arguments; most is 0 for any number.
func modelArgs(least, most int) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return errors.New("no model given")
		case most > 0 && len(args) > most:
			return fmt.Errorf("one model expected, got %d: %.300q", len(args), args)
		}
		return nil
	}
}

// modelNames is modelArgs for models of this node, which have references or digests.
func modelNames(least, most int) cobra.PositionalArgs {
	return cobra.MatchAll(modelArgs(least, most), func(_ *cobra.Command, args []string) error { return names(args) })
}

// names checks that arguments are references or digests.
func names(args []string) error {
	for _, s := range args {
		if _, err := modelname.Parse(s); err != nil {
			return &usageError{err}
		}
	}
	return nil
}

// show prints a result: v as JSON, with --quiet the words, one a line, and otherwise rows as a table.
func (a *app) show(out output, v any, words []string, rows [][]string) error {
	switch {
	case out == outJSON:
		return a.printJSON(v)
	case a.quiet && words != nil:
		for _, w := range words {
			if _, err := fmt.Fprintln(a.stdout, printable(w)); err != nil {
				return err
			}
		}
		return nil
	}
	return a.table(rows)
}

// printJSON writes v as JSON.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.stdout)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// printable returns s for a terminal, with a mark for each character that controls it or cannot be seen. Names are
// not trusted.
func printable(s string) string {
	const blank = '\u2800' // of Braille
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == blank || unicode.In(r, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point) {
			return '\ufffd'
		}
		return r
	}, s)
}

// printableText is printable for a message of several lines.
func printableText(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		cells := strings.Split(line, "\t")
		for k := range cells {
			cells[k] = printable(cells[k])
		}
		lines[i] = strings.Join(cells, "\t")
	}
	return strings.Join(lines, "\n")
}

// size formats n in SI units.
func size(n int64) string { return humanize.Bytes(uint64(max(n, 0))) }

// ago formats the time since t.
func ago(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return humanize.Time(t)
}

// shortDigest returns the beginning of a digest, long enough to be unambiguous in practice.
func shortDigest(s string) string {
	_, hex, _ := strings.Cut(s, ":")
	return hex[:min(12, len(hex))]
}

package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// others are the names that other programs have for commands, and what there is here.
var others = map[string]string{
	"images": "ballast ls", "ps": "ballast ls", "rmi": "ballast rm", "remove": "ballast rm", "delete": "ballast rm",
	"show": "ballast inspect", "info": "ballast inspect", "push": "ballast convert SRC DST", "tag": "ballast convert SRC DST",
	"save": "ballast convert REF oci:DIR", "load": "ballast import", "download": "ballast pull",
	"prune": "ballast gc", "logs": "journalctl -u ballastd", "start": "systemctl start ballastd", "login": "docker login",
	"run": "ballast mount REF DIR", // a model has no program
	"cp":  "ballast convert SRC DST", "copy": "ballast convert SRC DST", "sign": "ballast convert SRC DST --sign KEY",
	"install": "ballast setup", "upgrade": "ballast setup", "update": "ballast setup", "uninstall": "ballast setup --remove",
	"check": "ballast doctor", "health": "ballast doctor", "fsck": "ballast verify", "repair": "ballast verify --repair",
	"clean": "ballast gc", "stop": "systemctl stop ballastd", "restart": "systemctl restart ballastd", "serve": "systemctl start ballastd",
	"history": "ballast status", "stats": "ballast top", llmmanProgram: "ballast resolve --llmman REF",
}

// otherFlags are the flags that other programs have, and what there is here; after the name of a command, for it alone.
var otherFlags = map[string]string{
	"json": "-o json", "pull ttl": "ballast prefetch --ttl TIME", "ballast v": "ballast version",
}

// group makes c a command that only has subcommands. An unknown one, or none, is a usage error.
func group(c *cobra.Command) *cobra.Command {
	c.Args = cobra.ArbitraryArgs
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return noCommand(c, args)
		}
		var names []string
		for _, sub := range c.Commands() {
			names = append(names, sub.Name())
		}
		return usage("%s needs a command: %s", c.CommandPath(), strings.Join(names, ", "))
	}
	return c
}

// removals are commands that are never suggested for another word, however similar.
var removals = []string{"rm", "gc", "unpin", "unmount"}

// noCommand returns the error for a command that c does not have.
func noCommand(c *cobra.Command, words []string) error {
	text := fmt.Sprintf("there is no command %.300q", words[0])
	if use := others[words[0]]; use != "" && !c.HasParent() {
		return usage("%s: use %q", text, use)
	}
	c.SuggestionsMinimumDistance = min(2, len(words[0])/3)
	like := slices.DeleteFunc(c.SuggestionsFor(words[0]), func(s string) bool {
		return slices.Contains(removals, s) || len(s) < 3 && !strings.HasPrefix(words[0], s)
	})
	if len(like) == 0 {
		return usage("%s: \"%s --help\" lists all", text, c.CommandPath())
	}
	return usage("%s: did you mean %s?", text, strings.Join(like, " or "))
}

// flagError is the FlagErrorFunc of all commands.
func (a *app) flagError(c *cobra.Command, err error) error {
	unknown, isUnknown := errors.AsType[*pflag.NotExistError](err)
	if isUnknown && unknown.GetSpecifiedName() == "a" {
		return usage("there is no flag -a: commands without a name are about all models, and the admin socket is --address")
	}
	if flags := c.PersistentFlags(); !c.HasParent() {
		flags.ParseErrorsAllowlist.UnknownFlags = true
		if flags.Parse(a.args) == nil && flags.NArg() > 0 {
			return noCommand(c, flags.Args()) // whose flags they are
		}
	}
	if missing, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return usage("--%s needs a value", missing.GetFlag().Name)
	}
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		cause := errors.Unwrap(err)
		if errors.Is(cause, strconv.ErrSyntax) || errors.Is(cause, strconv.ErrRange) {
			cause = errors.New("a number is expected")
			if invalid.GetFlag().Value.Type() == "bool" {
				cause = errors.New("true or false is expected")
			}
		}
		return usage("--%s %.300q: %w", invalid.GetFlag().Name, invalid.GetValue(), cause)
	}
	if !isUnknown {
		return &usageError{err}
	}
	name := unknown.GetSpecifiedName()
	dashes := "--"
	if len(name) == 1 {
		dashes = "-"
	}
	text := fmt.Sprintf("there is no flag %s%.300s", dashes, name)
	if use := cmp.Or(otherFlags[c.Name()+" "+name], otherFlags[name]); use != "" {
		return usage("%s: use %q", text, use)
	}
	flags := &cobra.Command{SuggestionsMinimumDistance: 2} // with a command for each flag
	c.Flags().VisitAll(func(f *pflag.Flag) {
		flags.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
	})
	like := slices.DeleteFunc(flags.SuggestionsFor(name), func(s string) bool { return len(name) == 1 && !strings.HasPrefix(s, name) })
	if len(like) > 0 {
		return usage("%s: did you mean --%s?", text, strings.Join(like, " or --"))
	}
	return usage("%s: \"%s --help\" lists all", text, c.CommandPath())
}

// A ttl is a duration in the command line, which can also be in days (3d) or weeks (2w).
type ttl time.Duration

// String implements pflag.Value.
func (t *ttl) String() string {
	if *t == 0 {
		return ""
	}
	return time.Duration(*t).String()
}

// Set implements pflag.Value.
func (t *ttl) Set(s string) error {
	d, err := time.ParseDuration(s)
	for unit, length := range map[string]time.Duration{"d": 24 * time.Hour, "w": 7 * 24 * time.Hour} {
		if n, ok := strings.CutSuffix(s, unit); ok && err != nil {
			var days int64
			if days, err = strconv.ParseInt(n, 10, 16); err == nil {
				d = time.Duration(min(days, int64(math.MaxInt64/length))) * length // 292 years
			}
		}
	}
	switch {
	case err != nil:
		return errors.New("write a time such as 12h, 3d or 2w")
	case d < 0:
		return errors.New("it is negative")
	case d == 0:
		return errors.New("it is zero; without the flag, pins stay")
	}
	*t = ttl(d)
	return nil
}

// Type implements pflag.Value.
func (t *ttl) Type() string { return "time" }

// ttlFlag adds the flag about the end of the pins that a command makes.
func ttlFlag(c *cobra.Command, d *time.Duration) {
	c.Flags().Var((*ttl)(d), "ttl", "remove the pins after this time, such as 12h, 3d or 2w (default: keep them)")
}

// pinFlags adds the flags about pins of the models that a command downloads.
func pinFlags(c *cobra.Command, d *time.Duration, noPin *bool) {
	ttlFlag(c, d)
	c.Flags().BoolVar(noPin, "no-pin", false, "do not pin the models; they are removed when space is needed")
}

// ahead formats the time until t, rounded: "3 days".
func ahead(t time.Time) string {
	const day = 24 * time.Hour
	switch d := time.Until(t); {
	case d.Round(time.Hour) >= 2*day:
		return plural(int((d+day/2)/day), "day")
	case d.Round(time.Minute) >= 2*time.Hour:
		return plural(int((d+time.Hour/2)/time.Hour), "hour")
	default:
		return plural(int((max(d, 0)+time.Minute/2)/time.Minute), "minute")
	}
}

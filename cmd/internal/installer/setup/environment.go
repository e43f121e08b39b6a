package setup

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/installer/node"
	"github.com/containerd/errdefs"
)

// environmentFile has the environment of the unit of ballastd.
const environmentFile = "/etc/default/ballastd"

// variableRE matches the name of a variable.
var variableRE = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// environment adds the environment of ballastd: what requests of containerd obey, such as proxies, and Options.Env. A
// file of others is theirs: what it lacks is said, unless Options.Env has to be in it.
func (b *builder) environment(ctx context.Context) error {
	found := b.Environment(ctx)
	_, known := b.old[environmentFile]
	switch {
	case b.o.NoService:
		if len(found) > 0 {
			b.note("containerd has %s: give them to ballastd, where it runs (the value env of the chart)", names(found))
		}
		return nil
	case known && found == nil: // not known now
		b.files[environmentFile] = b.old[environmentFile]
		return nil
	}
	values := b.o.Values
	if len(b.o.Env) == 0 || values == nil {
		if done, err := b.theirEnvironment(found); done || err != nil {
			return err
		}
		last, err := b.Text(environmentFile)
		if err != nil {
			return err
		}
		values = environmentOf(last)
	}
	want := map[string]string{}
	maps.Copy(want, found)
	for _, name := range b.o.Env {
		if value, ok := values[name]; ok {
			want[name] = value
		} else {
			b.note("the value of %s is lost with %s: give it again, with --env", name, environmentFile)
		}
	}
	if len(want) == 0 {
		return nil
	}
	text, err := environmentText(want)
	if err != nil {
		return err
	}
	return b.want(environmentFile, []byte(text), 0o600, daemonGroup, "ballastd gets "+names(want))
}

// theirEnvironment reports whether the environment file is that of others, and says what it lacks.
func (b *builder) theirEnvironment(found map[string]string) (bool, error) {
	have, err := b.disk().digestAt(environmentFile)
	if err != nil || have == "" || b.ours(environmentFile, have) {
		return false, err
	}
	text, err := b.Text(environmentFile)
	if err != nil {
		return false, err
	}
	if lacks := node.Lacks(node.FileVariables(text), found); len(lacks) > 0 {
		b.note("containerd has %s, and ballastd has not: add to %s what systemctl show -p Environment -p EnvironmentFiles %s says of it, and restart ballastd", strings.Join(lacks, ", "), environmentFile, b.Unit)
	}
	return true, nil
}

// names returns the names of variables as text: values can be secret.
func names(variables map[string]string) string {
	return strings.Join(slices.Sorted(maps.Keys(variables)), ", ")
}

// The characters of values that are escaped in the file, and the reverse.
var (
	escapeValue   = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "`", "\\`", "$", `\$`)
	unescapeValue = strings.NewReplacer(`\\`, `\`, `\"`, `"`, "\\`", "`", `\$`, "$")
)

// environmentOf returns the variables in a file of environmentText.
func environmentOf(text string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(line, `="`); ok {
			all[name] = unescapeValue.Replace(strings.TrimSuffix(value, "\"\n"))
		}
	}
	return all
}

// environmentText returns the file of an environment. It returns errdefs.ErrInvalidArgument for what it cannot have.
// https://www.freedesktop.org/software/systemd/man/257/systemd.exec.html#EnvironmentFile=
func environmentText(variables map[string]string) (string, error) {
	var text strings.Builder
	text.WriteString("# Written by \"ballast setup\".\n")
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		if !variableRE.MatchString(name) || strings.ContainsAny(variables[name], "\n\x00") {
			return "", fmt.Errorf("--env: %q is no name of a variable, or its value has more than one line: %w", name, errdefs.ErrInvalidArgument)
		}
		fmt.Fprintf(&text, "%s=\"%s\"\n", name, escapeValue.Replace(variables[name]))
	}
	return text.String(), nil
}

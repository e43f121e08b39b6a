// Package build builds the programs of ballast for a release: the same commit, version and version of Go result
// in the same bytes, in whatever directory, clone and environment.
package build

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const module = "github.com/ballast-dev/ballast"

// Names are the names of the programs with a man page, which are also their packages below cmd.
var Names = []string{"ballast", "ballastd"}

// KeylessName is the same of the program that these start to verify keyless signatures.
const KeylessName = "ballast-keyless"

// FleetName is the name of the program for Kubernetes, which is also its module below cmd.
const FleetName = "ballast-fleet"

// DemoName is the name of the demo, which is also its package below test.
const DemoName = "ballast-demo"

// Archs are the architectures of a release, as Go names them.
var Archs = []string{"amd64", "arm64"}

// A Commit is what is built.
type Commit struct {
	ID   string // with "-dirty" if files are not as in the commit; empty without git
	Time time.Time
}

// Dirty reports whether files are not as in the commit.
func (c Commit) Dirty() bool { return strings.HasSuffix(c.ID, "-dirty") }

// CommitOf returns the commit of a clone.
func CommitOf(ctx context.Context, source string) (Commit, error) {
	head, err := git(ctx, source, "log", "-1", "--format=%H %ct")
	if err != nil {
		return Commit{}, err
	}
	id, seconds, _ := strings.Cut(strings.TrimSpace(head), " ")
	at, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return Commit{}, fmt.Errorf("time of commit %s: %w", id, err)
	}
	changed, err := git(ctx, source, "status", "--porcelain")
	if err != nil {
		return Commit{}, err
	}
	if changed != "" {
		id += "-dirty"
	}
	return Commit{ID: id, Time: time.Unix(at, 0).UTC()}, nil
}

func git(ctx context.Context, source string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = source
	return output(cmd)
}

// output returns the output of a command.
func output(cmd *exec.Cmd) (string, error) {
	var failed strings.Builder
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s in %s: %w\n%s", strings.Join(cmd.Args, " "), cmd.Dir, err, failed.String())
	}
	return string(out), nil
}

// A Build is what programs are built from.
type Build struct {
	Source  string // the repository
	Version string
	Commit  Commit
}

// A Main is programs that are built from one main module.
type Main struct {
	Name     string // of its programs
	Dir      string // of the module
	Version  string // of the module, for notices
	Packages []string
	Flags    []string // of "go build" and "go list"
	LDFlags  string
	Env      []string // in addition to the one that all have
}

// Ours are the programs of ballast.
func (b *Build) Ours() Main {
	return Main{Name: "ballast", Dir: b.Source, Version: b.Version, Packages: append(packages(), "./cmd/"+KeylessName), LDFlags: b.flags()}
}

// Demo is the demo.
func (b *Build) Demo() Main {
	return Main{Name: DemoName, Dir: filepath.Join(b.Source, "test"), Version: b.Version, Packages: []string{"./" + DemoName}, LDFlags: "-s -w"}
}

// Fleet is the program for Kubernetes, which only the image has.
func (b *Build) Fleet() Main {
	return Main{Name: FleetName, Dir: filepath.Join(b.Source, "cmd", FleetName), Version: b.Version, Packages: []string{"."}, LDFlags: b.flags()}
}

// Write builds the programs for an architecture into a directory, for its oldest processors.
func (m *Main) Write(ctx context.Context, arch, dir string) error {
	dir, err := filepath.Abs(dir) // the command runs in the directory of the module
	if err != nil {
		return err
	}
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags", m.LDFlags, "-o", dir + string(filepath.Separator)}, m.Flags...)
	_, err = output(m.gocmd(ctx, arch, append(args, m.Packages...)...))
	return err
}

// Manuals writes the man pages of the programs to a directory.
func (b *Build) Manuals(ctx context.Context, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	args := append([]string{"test", "-trimpath", "-buildvcs=false", "-count=1", "-run", "^TestManual$", "-ldflags", b.flags()}, packages()...)
	ours := b.Ours()
	_, err = output(ours.gocmd(ctx, "", append(args, "-man", dir)...))
	return err
}

func packages() []string {
	all := make([]string, len(Names))
	for i, n := range Names {
		all[i] = "./cmd/" + n
	}
	return all
}

// flags are the flags of the linker. What the go command records of the clone depends on its tags.
func (b *Build) flags() string {
	flags := "-s -w"
	for _, v := range [][2]string{{"version", b.Version}, {"revision", b.Commit.ID}, {"date", date(b.Commit.Time)}} {
		if v[1] != "" {
			flags += " -X " + module + "/cmd/internal/contract/wire." + v[0] + "=" + v[1]
		}
	}
	return flags
}

func date(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(time.RFC3339)
}

// gocmd returns a command line of go that nothing in the environment changes. An empty arch is that of this
// machine.
func (m *Main) gocmd(ctx context.Context, arch string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = m.Dir
	cmd.Env = append(slices.Clip(os.Environ()), "CGO_ENABLED=0", "GOFLAGS=", "GOEXPERIMENT=", "GOFIPS140=off", "GOWORK=off", "GOAMD64=v1", "GOARM64=v8.0")
	cmd.Env = append(cmd.Env, m.Env...)
	if arch != "" {
		cmd.Env = append(cmd.Env, "GOOS=linux", "GOARCH="+arch)
	}
	return cmd
}

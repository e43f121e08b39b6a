package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/ballast-dev/ballast/contrib/release/build"
)

// Directories of the repository.
const (
	here     = "contrib/release"
	chartDir = "contrib/helm/ballast"
)

// release is a release in the making.
type release struct {
	build.Build
	out   string // the directory of the release
	work  string // a temporary directory
	archs []string
	key   string   // file of the key that signs; empty for none
	only  []string // the parts that are written; nil for those of a release
}

// A part is something that can be written by itself.
type part struct {
	name  string
	write func(context.Context) error
}

// parts returns all parts, in the order in which they are written.
func (r *release) parts() []part {
	return []part{
		{"tar", r.tarballs},
		{"deb", func(ctx context.Context) error { return r.packages(ctx, "deb") }},
		{"rpm", func(ctx context.Context) error { return r.packages(ctx, "rpm") }},
		{"image", r.image},
		{"demo", r.demo},
		{"chart", r.chart},
		{"sbom", r.sbom},
		{"sums", r.sums},
		{rootPart, r.root},
	}
}

// rootPart is the part that a release does not have: the files of the image, for the Dockerfile.
const rootPart = "root"

func main() {
	syscall.Umask(0o022)
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// versions are versions that packages, chart and tags can have.
var versions = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z]+(\.[0-9A-Za-z]+)*)?$`)

// run runs a command line.
func run(ctx context.Context, args []string) error {
	r := release{}
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.StringVar(&r.Source, "source", "../..", "`directory` of the repository")
	flags.StringVar(&r.out, "o", "", "`directory` to write to, which must not exist for a release")
	flags.StringVar(&r.Version, "version", "", "`version` of the release, such as v0.1.0 or v0.2.0-rc.1")
	flags.StringVar(&r.key, "key", "", "`file` of the private key that signs: one of \"cosign generate-key-pair\", with its password in COSIGN_PASSWORD, or an EC key as PEM")
	var names []string
	for _, p := range r.parts() {
		names = append(names, p.name)
	}
	only := flags.String("only", "", "write these `parts` alone, also of a clone with changes: "+strings.Join(names, ","))
	archs := flags.String("arch", strings.Join(build.Archs, ","), "`architectures`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	r.archs = strings.Split(*archs, ",")
	if *only != "" {
		r.only = strings.Split(*only, ",")
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("%q is not understood", flags.Arg(0))
	case r.out == "":
		return errors.New("-o is needed")
	case slices.Contains(r.only, rootPart) && len(r.archs) != 1:
		return errors.New("-only root is for one -arch")
	}
	for _, name := range r.only {
		if !slices.Contains(names, name) {
			return fmt.Errorf("there is no part %q", name)
		}
	}
	var err error
	if r.Commit, err = build.CommitOf(ctx, r.Source); err != nil && *only != rootPart { // the Dockerfile may have no clone
		return err
	}
	if err := r.makeOut(); err != nil {
		return err
	}
	if r.work, err = os.MkdirTemp("", "ballast-release-"); err != nil {
		return err
	}
	return errors.Join(r.write(ctx), os.RemoveAll(r.work))
}

// makeOut makes the directory to write to.
func (r *release) makeOut() error {
	if r.only != nil {
		return os.MkdirAll(r.out, 0o755)
	}
	if err := r.check(); err != nil {
		return err
	}
	return os.Mkdir(r.out, 0o755)
}

// write writes the parts.
func (r *release) write(ctx context.Context) error {
	for _, p := range r.parts() {
		if r.only == nil && p.name != rootPart || slices.Contains(r.only, p.name) {
			if err := p.write(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// number is the version without v, as packages and charts have it.
func (r *release) number() string { return strings.TrimPrefix(r.Version, "v") }

// check returns why the clone cannot be released as the version.
func (r *release) check() error {
	if !versions.MatchString(r.Version) {
		return fmt.Errorf("version %q is not that of a release: make release VERSION=v0.1.0", r.Version)
	}
	if r.Commit.Dirty() {
		return errors.New("the clone has changes, and a release is of a commit: commit or remove them (git status)")
	}
	chart, err := os.ReadFile(filepath.Join(r.Source, chartDir, "Chart.yaml"))
	if err != nil {
		return err
	}
	for _, line := range []string{"version: " + r.number(), "appVersion: " + r.Version} {
		if !strings.Contains(string(chart), "\n"+line+"\n") {
			return fmt.Errorf("%s/Chart.yaml has no line %q: write it, then make chart", chartDir, line)
		}
	}
	changes, err := os.ReadFile(filepath.Join(r.Source, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	if !strings.Contains(string(changes), "\n## "+r.Version+"\n") {
		return fmt.Errorf("CHANGELOG.md has no section %q", "## "+r.Version)
	}
	if r.key == "" {
		return nil // the release says that it is not signed
	}
	return r.checkKey()
}

// chart writes the Helm chart, as "helm package" does.
func (r *release) chart(context.Context) error {
	t, err := r.tree("chart", func(t tree) error { return t.copy("ballast", filepath.Join(r.Source, chartDir)) })
	if err != nil {
		return err
	}
	return r.archive("ballast-"+r.number()+".tgz", t)
}

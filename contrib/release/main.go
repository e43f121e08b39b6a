package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/contrib/image/build"
)

// release is a release in the making.
type release struct {
	build.Build
	out   string // the directory of the release
	work  string // a temporary directory
	archs []string
	key   string   // file of the key that signs; empty for none
	only  []string // no more than these of deb, rpm and tar; nil for all there is
}

func main() {
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
	flags.StringVar(&r.Source, "source", ".", "`directory` of the repository")
	flags.StringVar(&r.out, "o", "", "`directory` to write to, which must not exist")
	flags.StringVar(&r.Version, "version", "", "`version` of the release, such as v0.1.0 or v0.2.0-rc.1")
	flags.StringVar(&r.key, "key", "", "`file` of the private key that signs: one of \"cosign generate-key-pair\", with its password in COSIGN_PASSWORD, or an EC key as PEM")
	only := flags.String("only", "", "no more than these `formats` (deb,rpm,tar), also of a clone with changes; for tests")
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
	case !versions.MatchString(r.Version):
		return fmt.Errorf("version %q is not that of a release: make release VERSION=v0.1.0", r.Version)
	}
	var err error
	if r.Commit, err = build.CommitOf(ctx, r.Source); err != nil {
		return err
	}
	if r.only == nil {
		if err := r.check(); err != nil {
			return err
		}
	}
	if err := os.Mkdir(r.out, 0o755); err != nil {
		return err
	}
	if r.work, err = os.MkdirTemp("", "ballast-release-"); err != nil {
		return err
	}
	more := []func(context.Context) error{r.image, r.chart, r.sbom, r.sums}
	if r.only != nil {
		more = nil
	}
	return errors.Join(r.write(ctx, more...), os.RemoveAll(r.work))
}

// number is the version without v, as packages and charts have it.
func (r *release) number() string { return strings.TrimPrefix(r.Version, "v") }

// check returns why the clone cannot be released as the version.
func (r *release) check() error {
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

// write writes what is of an architecture, and then more.
func (r *release) write(ctx context.Context, more ...func(context.Context) error) error {
	common, err := r.common(ctx)
	if err != nil {
		return err
	}
	for _, arch := range r.archs {
		if err := r.writeArch(ctx, arch, common); err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
	}
	for _, f := range more {
		if err := f(ctx); err != nil {
			return err
		}
	}
	return nil
}

// writeArch writes the tarball and the packages of an architecture.
func (r *release) writeArch(ctx context.Context, arch string, common []file) error {
	files := slices.Clone(common)
	if err := r.programs(ctx, arch); err != nil {
		return err
	}
	for _, name := range build.Names {
		p, err := os.ReadFile(r.program(arch, name))
		if err != nil {
			return err
		}
		files = append(files, file{inTarball: name, inPackage: "/usr/bin/" + name, mode: 0o755, data: p})
	}
	if r.only == nil || slices.Contains(r.only, "tar") {
		demo, err := r.demo(ctx, arch)
		if err != nil {
			return err
		}
		if err := r.tarball(arch, append(demo, files...)); err != nil {
			return err
		}
	}
	return r.writePackages(arch, files)
}

// demo returns the demo, which is for the tarball alone.
func (r *release) demo(ctx context.Context, arch string) ([]file, error) {
	demo, dir := r.Demo(), filepath.Join(r.work, arch+"-demo")
	modules, err := build.Modules(ctx, []string{arch}, demo)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.Mkdir(dir, 0o755), demo.Write(ctx, arch, dir)); err != nil {
		return nil, err
	}
	p, err := os.ReadFile(filepath.Join(dir, build.DemoName))
	return []file{
		{inTarball: build.DemoName, mode: 0o755, data: p},
		{inTarball: "NOTICES-demo", mode: 0o644, data: build.Notices(modules)},
	}, err
}

// programs builds the programs for an architecture, once.
func (r *release) programs(ctx context.Context, arch string) error {
	dir := filepath.Join(r.work, arch)
	if err := os.Mkdir(dir, 0o755); errors.Is(err, os.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	ours := r.Ours()
	return ours.Write(ctx, arch, dir)
}

// program is the path of a program that was built.
func (r *release) program(arch, name string) string { return filepath.Join(r.work, arch, name) }

// own runs a program of this machine's architecture, and returns its output.
func (r *release) own(ctx context.Context, name string, args ...string) ([]byte, error) {
	if err := r.programs(ctx, runtime.GOARCH); err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, r.program(runtime.GOARCH, name), args...).Output()
}

// image writes the container image, and that of the demo for this machine's architecture.
func (r *release) image(ctx context.Context) error {
	for name, what := range map[string]string{
		"ballast_" + r.number() + "_image.tar":                                        strings.Join(r.archs, ","),
		fmt.Sprintf("%s_%s_image_%s.tar", build.DemoName, r.number(), runtime.GOARCH): "demo",
	} {
		dir := filepath.Join(r.work, name)
		cmd := exec.CommandContext(ctx, filepath.Join(r.Source, "contrib/image/build.sh"), dir, r.Version, what)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build the image: %w\n%s", err, out)
		}
		if err := move(dir+".tar", filepath.Join(r.out, name)); err != nil {
			return err
		}
	}
	return nil
}

// move moves a file, also to another file system.
func move(from, to string) error {
	p, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(to, p, 0o644), os.Remove(from))
}

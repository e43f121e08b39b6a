package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/ballast-dev/ballast/contrib/release/build"
	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // for nfpm.Get
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// common returns the files of tarballs that are the same for all architectures.
func (r *release) common(ctx context.Context) (tree, error) {
	return r.tree("common", func(t tree) error {
		modules, err := build.Modules(ctx, build.Archs, r.Ours())
		if err != nil {
			return err
		}
		if err := errors.Join(t.write("NOTICES", build.Notices(modules)), r.copies(t), r.completions(ctx, t), os.Mkdir(t.path("man"), 0o755)); err != nil {
			return err
		}
		return r.Manuals(ctx, t.path("man"))
	})
}

// copies copies files of the repository.
func (r *release) copies(t tree) error {
	for _, c := range []struct{ dir, pattern string }{
		{"", "LICENSE"}, {"", "CHANGELOG.md"}, {"systemd", "contrib/systemd/*.s*"}, {"kubernetes", "contrib/kubernetes/*.yaml"},
	} {
		names, err := filepath.Glob(filepath.Join(r.Source, c.pattern))
		if err != nil || len(names) == 0 {
			return fmt.Errorf("there is no %s: %w", c.pattern, err)
		}
		for _, n := range names {
			if err := t.copy(filepath.Join(c.dir, filepath.Base(n)), n); err != nil {
				return err
			}
		}
	}
	return nil
}

// completions writes the scripts that complete command lines, as the program for this machine prints them.
func (r *release) completions(ctx context.Context, t tree) error {
	own, err := r.built(ctx, runtime.GOARCH, r.Ours())
	if err != nil {
		return err
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		p, err := exec.CommandContext(ctx, own.path("ballast"), "completion", shell).Output()
		if err := errors.Join(err, t.write("completion/"+shell, p)); err != nil {
			return fmt.Errorf("completion for %s: %w", shell, err)
		}
	}
	return nil
}

// tarballs writes the tarball of each architecture.
func (r *release) tarballs(ctx context.Context) error {
	common, err := r.common(ctx)
	if err != nil {
		return err
	}
	for _, arch := range r.archs {
		name := fmt.Sprintf("ballast_%s_linux_%s", r.number(), arch)
		t, err := r.tree(name, func(t tree) error {
			modules, err := build.Modules(ctx, []string{arch}, r.Demo())
			if err := errors.Join(err, t.copy(name, string(common)), t.write(name+"/NOTICES-demo", build.Notices(modules))); err != nil {
				return err
			}
			return r.programs(ctx, arch, t, name, r.Ours(), r.Demo())
		})
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		if err := r.archive(name+".tar.gz", t); err != nil {
			return err
		}
	}
	return nil
}

// packaged returns the files of common that packages have in another form: they start the programs of the package,
// and have compressed man pages.
func (r *release) packaged(common tree) (tree, error) {
	return r.tree("packaged", func(t tree) error {
		names, err := filepath.Glob(common.path("*/*"))
		for _, name := range names {
			p, failed := os.ReadFile(name)
			dir, file := filepath.Base(filepath.Dir(name)), filepath.Base(name)
			if dir == "man" {
				var b bytes.Buffer
				z := gzip.NewWriter(&b) // without a name or a time
				_, werr := z.Write(p)
				err = errors.Join(err, werr, z.Close())
				p, file = b.Bytes(), file+".gz"
			} else {
				p = bytes.ReplaceAll(p, []byte("/usr/local/bin/"), []byte("/usr/bin/"))
			}
			err = errors.Join(err, failed, t.write(filepath.Join(dir, file), p))
		}
		return err
	})
}

// packages writes the packages of a format, which nfpm.yaml describes.
func (r *release) packages(ctx context.Context, format string) error {
	common, err := r.common(ctx)
	if err != nil {
		return err
	}
	packaged, err := r.packaged(common)
	if err != nil {
		return err
	}
	for _, arch := range r.archs {
		programs, err := r.built(ctx, arch, r.Ours())
		if err != nil {
			return err
		}
		vars := map[string]string{"COMMON": string(common), "PACKAGED": string(packaged), "PROGRAMS": string(programs), "ARCH": arch, "VERSION": r.number()}
		if format == "rpm" { // upstream's own package for Debian has none
			vars["RELEASE"] = "1"
		}
		if err := r.pack(format, func(name string) string { return vars[name] }); err != nil {
			return fmt.Errorf("%s for %s: %w", format, arch, err)
		}
	}
	return nil
}

// pack writes a package.
func (r *release) pack(format string, vars func(string) string) error {
	config, err := nfpm.ParseFileWithEnvMapping(filepath.Join(r.Source, here, "nfpm.yaml"), vars)
	if err != nil {
		return err
	}
	info, err := config.Get(format)
	if err != nil {
		return err
	}
	info.MTime = r.Commit.Time
	for _, script := range []*string{&info.Scripts.PostInstall, &info.Scripts.PreRemove, &info.Scripts.PostRemove} {
		*script = filepath.Join(r.Source, here, *script)
	}
	p, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(r.out, p.ConventionalFileName(info)))
	if err != nil {
		return err
	}
	return errors.Join(p.Package(info, f), f.Close())
}

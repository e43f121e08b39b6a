package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/contrib/image/build"
)

// A file is a file of the release.
type file struct {
	inTarball string // relative; empty if it is only in packages
	inPackage string // absolute; empty if it is only in the tarball
	format    string // deb or rpm if inPackage is only for these packages
	mode      fs.FileMode
	data      []byte
}

const (
	docDir   = "/usr/share/doc/ballast"
	unitDir  = "/usr/lib/systemd/system"
	chartDir = "contrib/helm/ballast"
)

// common returns the files that are the same for all architectures.
func (r *release) common(ctx context.Context) ([]file, error) {
	var all []file
	for _, f := range []func(context.Context) ([]file, error){r.documents, r.manuals, r.completions, r.units, r.objects} {
		files, err := f(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, files...)
	}
	return all, nil
}

// documents are the licences and the changes.
func (r *release) documents(ctx context.Context) ([]file, error) {
	modules, err := build.Modules(ctx, build.Archs, r.Ours())
	if err != nil {
		return nil, err
	}
	notices := build.Notices(modules)
	licence, err := os.ReadFile(filepath.Join(r.Source, "LICENSE"))
	if err != nil {
		return nil, err
	}
	changes, err := os.ReadFile(filepath.Join(r.Source, "CHANGELOG.md"))
	if err != nil {
		return nil, err
	}
	return []file{
		{inTarball: "LICENSE", mode: 0o644, data: licence},
		{inPackage: docDir + "/copyright", mode: 0o644, data: licence},
		{inTarball: "NOTICES", inPackage: docDir + "/NOTICES", mode: 0o644, data: notices},
		{inTarball: "CHANGELOG.md", inPackage: docDir + "/CHANGELOG.md", mode: 0o644, data: changes},
	}, nil
}

// manuals are the man pages.
func (r *release) manuals(ctx context.Context) ([]file, error) {
	dir := filepath.Join(r.work, "man")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	if err := r.Manuals(ctx, dir); err != nil {
		return nil, err
	}
	var files []file
	for _, name := range build.Names {
		p, err := os.ReadFile(filepath.Join(dir, name+".8"))
		if err != nil {
			return nil, err
		}
		zipped, err := compress(p)
		if err != nil {
			return nil, err
		}
		files = append(files, file{inTarball: "man/" + name + ".8", mode: 0o644, data: p},
			file{inPackage: "/usr/share/man/man8/" + name + ".8.gz", mode: 0o644, data: zipped})
	}
	return files, nil
}

// completions are the scripts that complete command lines.
func (r *release) completions(ctx context.Context) ([]file, error) {
	var files []file
	for _, c := range []struct {
		shell string
		file
	}{
		{"bash", file{inTarball: "completion/bash", inPackage: "/usr/share/bash-completion/completions/ballast"}},
		{"zsh", file{inTarball: "completion/zsh", inPackage: "/usr/share/zsh/vendor-completions/_ballast", format: "deb"}},
		{"zsh", file{inPackage: "/usr/share/zsh/site-functions/_ballast", format: "rpm"}},
		{"fish", file{inTarball: "completion/fish", inPackage: "/usr/share/fish/vendor_completions.d/ballast.fish"}},
	} {
		p, err := r.own(ctx, "ballast", "completion", c.shell)
		if err != nil {
			return nil, fmt.Errorf("completion for %s: %w", c.shell, err)
		}
		c.mode, c.data = 0o644, p
		files = append(files, c.file)
	}
	return files, nil
}

// units are the units of systemd. In packages they start the programs of the package.
func (r *release) units(context.Context) ([]file, error) {
	return r.glob("contrib/systemd/*.s*", func(name string, p []byte) []file {
		return []file{
			{inTarball: "systemd/" + name, mode: 0o644, data: p},
			{inPackage: unitDir + "/" + name, mode: 0o644, data: packaged(p)},
		}
	})
}

// objects are the objects of Kubernetes that the documentation uses.
func (r *release) objects(context.Context) ([]file, error) {
	return r.glob("contrib/kubernetes/*.yaml", func(name string, p []byte) []file {
		return []file{
			{inTarball: "kubernetes/" + name, mode: 0o644, data: p},
			{inPackage: docDir + "/kubernetes/" + name, mode: 0o644, data: packaged(p)},
		}
	})
}

// packaged returns a text with the programs of a package.
func packaged(p []byte) []byte {
	return bytes.ReplaceAll(p, []byte("/usr/local/bin/"), []byte("/usr/bin/"))
}

// glob returns what f makes of the files that match a pattern; there must be some.
func (r *release) glob(pattern string, f func(name string, p []byte) []file) ([]file, error) {
	names, err := filepath.Glob(filepath.Join(r.Source, pattern))
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("there is no %s", pattern)
	}
	var files []file
	for _, n := range names {
		p, err := os.ReadFile(n)
		if err != nil {
			return nil, err
		}
		files = append(files, f(filepath.Base(n), p)...)
	}
	return files, nil
}

// tarball writes the tarball of an architecture.
func (r *release) tarball(arch string, files []file) error {
	name := fmt.Sprintf("ballast_%s_linux_%s", r.number(), arch)
	var inside []file
	for _, f := range files {
		if f.inTarball != "" {
			f.inTarball = name + "/" + f.inTarball
			inside = append(inside, f)
		}
	}
	return r.archive(name+".tar.gz", inside)
}

// chart writes the Helm chart, as "helm package" does.
func (r *release) chart(context.Context) error {
	root := filepath.Join(r.Source, chartDir)
	var files []file
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(p)
		files = append(files, file{inTarball: "ballast/" + rel, mode: 0o644, data: text})
		return err
	})
	if err != nil {
		return err
	}
	return r.archive("ballast-"+r.number()+".tgz", files)
}

// archive writes a compressed tar with owner root and the time of the commit.
func (r *release) archive(name string, files []file) error {
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.inTarball, b.inTarball) })
	var b bytes.Buffer
	if err := writeTar(&b, files, r.Commit.Time); err != nil {
		return err
	}
	p, err := compress(b.Bytes())
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, name), p, 0o644)
}

// writeTar writes files, and their directories before them.
func writeTar(to io.Writer, files []file, at time.Time) error {
	w, made := tar.NewWriter(to), map[string]bool{".": true}
	for _, f := range files {
		var dirs []string
		for d := path.Dir(f.inTarball); !made[d]; d = path.Dir(d) {
			dirs, made[d] = append(dirs, d), true
		}
		for _, d := range slices.Backward(dirs) {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d + "/", Mode: 0o755, ModTime: at}); err != nil {
				return err
			}
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.inTarball, Mode: int64(f.mode), Size: int64(len(f.data)), ModTime: at}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := w.Write(f.data); err != nil {
			return err
		}
	}
	return w.Close()
}

// compress compresses with gzip, without a name or a time.
func compress(p []byte) ([]byte, error) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(p)
	if err := errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

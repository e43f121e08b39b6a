package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/ballast-dev/ballast/contrib/release/build"
)

// A tree is a directory whose files go into an archive, a layer or a package.
type tree string

// path returns the path of a file.
func (t tree) path(name string) string { return filepath.Join(string(t), name) }

// write writes a file, and makes its directory.
func (t tree) write(name string, p []byte) error {
	return errors.Join(os.MkdirAll(filepath.Dir(t.path(name)), 0o755), os.WriteFile(t.path(name), p, 0o644))
}

// copy copies a file, or a directory with all below it.
func (t tree) copy(name, from string) error {
	if info, err := os.Stat(from); err == nil && info.IsDir() {
		return os.CopyFS(t.path(name), os.DirFS(from))
	}
	p, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return t.write(name, p)
}

// tar writes a tar of the files and directories in the order of their names. Their owner is root, all have one time,
// and their modes do not depend on the umask.
func (t tree) tar(to io.Writer, at time.Time) error {
	w := tar.NewWriter(to)
	err := filepath.WalkDir(string(t), func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == string(t) {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(string(t), path)
		if err != nil {
			return err
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: info.Size(), ModTime: at}
		if info.Mode()&0o100 != 0 {
			h.Mode = 0o755
		}
		if info.Mode()&fs.ModeSticky != 0 {
			h.Mode = 0o1777 // the bits of tar
		}
		if e.IsDir() {
			h.Typeflag, h.Name, h.Size = tar.TypeDir, name+"/", 0
			return w.WriteHeader(h)
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err = io.Copy(w, f)
		return err
	})
	return errors.Join(err, w.Close())
}

// archive writes a tar of a tree to a file of the release, compressed if its name says so.
func (r *release) archive(name string, t tree) error {
	f, err := os.Create(filepath.Join(r.out, name))
	if err != nil {
		return err
	}
	defer f.Close()
	if filepath.Ext(name) == ".tar" {
		return errors.Join(t.tar(f, r.Commit.Time), f.Close())
	}
	z := gzip.NewWriter(f) // without a name or a time
	return errors.Join(t.tar(z, r.Commit.Time), z.Close(), f.Close())
}

// tree returns a directory for temporary files, which fill fills the first time.
func (r *release) tree(name string, fill func(tree) error) (tree, error) {
	t := tree(filepath.Join(r.work, name))
	if _, err := os.Stat(string(t)); err == nil {
		return t, nil
	}
	return t, errors.Join(os.MkdirAll(string(t), 0o755), fill(t))
}

// built returns the directory of programs for an architecture.
func (r *release) built(ctx context.Context, arch string, m build.Main) (tree, error) {
	return r.tree(filepath.Join("programs", arch, m.Name), func(t tree) error { return m.Write(ctx, arch, string(t)) })
}

// programs copies programs for an architecture into a directory of a tree.
func (r *release) programs(ctx context.Context, arch string, to tree, dir string, mains ...build.Main) error {
	for _, m := range mains {
		from, err := r.built(ctx, arch, m)
		if err == nil {
			err = to.copy(dir, string(from))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

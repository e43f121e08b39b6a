package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store/durable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// isA reports whether a source is already in a format.
func isA(f *format.Format, src *resolve.Source) bool {
	return src.Model.Table.Origin.Format == string(f.Name)
}

// unpacked turns the files of src, which have no format, into a model with facts in the format that
// can be written, without packing it.
func unpacked(src *resolve.Source, name string, facts format.Facts) error {
	f := formats.All().Writers()[0]
	if src.Origin != nil || isA(f, src) {
		return usage("%s: --runner and --runner-framework are for a directory that is no %s, or for --as %[2]s", name, f.Name)
	}
	if err := export.NoPointers(src); err != nil {
		return err
	}
	model, err := f.Writer.FromFiles(src.Model, facts)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	src.Model = model
	return nil
}

// pack writes a model as a file in a format.
func (a *app) pack(ctx context.Context, f *format.Format, from, to string, choice convert.Choice, o export.Options, facts format.Facts, out output) (err error) {
	if !strings.HasSuffix(strings.ToLower(to), f.Writer.Extension) {
		return usage("%s: --as %s writes a file, whose name ends in %s", to, f.Name, f.Writer.Extension)
	}
	if err := vacant(to, o.Force); err != nil {
		return err
	}
	start := time.Now()
	_, src, closeSrc, err := a.source(ctx, from, o.TempDir, choice)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeSrc()) }()
	switch stated := facts != (format.Facts{}); {
	case isA(f, src) && stated:
		return usage("%s: it is a %s, which says itself what its runner is", from, f.Name)
	case !isA(f, src) && !stated:
		return usage("%s: it is not a %s: name what loads it with --runner and --runner-framework", from, f.Name)
	}
	p := a.progress(out, to)
	o.Log, o.Progress = a.log(), follow(p)
	res := &export.Result{Form: export.Form(f.Name)}
	res.Losses, res.Problems, err = export.Files(ctx, src, o, func(files []format.File) (err error) {
		res.Digest, res.Size, err = writeFile(to, f.Writer.Extension, o.Force, func(w *os.File) (digest.Digest, error) {
			return f.Writer.Pack(ctx, w, files, src.Model.Config, facts)
		})
		return err
	})
	p.end()
	if err != nil {
		return fmt.Errorf("convert %s: %w", from, err)
	}
	a.reportLosses(res)
	res.Sent = res.Size
	return a.converted(conversion{Source: from, Target: to, Origin: src.Model.Table.Origin, Result: res}, out, time.Since(start))
}

// vacant returns errdefs.ErrAlreadyExists for a file that is there, unless it is to be replaced, and for a directory.
func vacant(name string, force bool) error {
	info, err := os.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("%s is a directory; choose another name: %w", name, errdefs.ErrAlreadyExists)
	case force:
		return nil
	}
	return fmt.Errorf("%s exists; choose another name, or replace it with --force: %w", name, errdefs.ErrAlreadyExists)
}

// writeFile writes a file under a temporary name and renames it when it is complete. It returns the
// result of write, and the size of the file in bytes.
func writeFile(name, extension string, force bool, write func(w *os.File) (digest.Digest, error)) (d digest.Digest, n int64, err error) {
	f, err := os.OpenFile(filepath.Join(filepath.Dir(name), ".ballast-"+rand.Text()+extension), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644)
	if err != nil {
		return "", 0, err
	}
	defer func() {
		if err != nil {
			f.Close() // an error has already occurred
			os.Remove(f.Name())
		}
	}()
	if d, err = write(f); err != nil {
		return "", 0, err
	}
	info, err := f.Stat()
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return "", 0, err
	}
	dir, err := os.OpenRoot(filepath.Dir(name))
	if err != nil {
		return "", 0, err
	}
	defer dir.Close()
	if err = vacant(name, force); err != nil { // again: packing takes long
		return "", 0, err
	}
	if err = errors.Join(os.Rename(f.Name(), name), f.Close()); err == nil {
		err = durable.Sync(dir, ".")
	}
	return d, info.Size(), err
}

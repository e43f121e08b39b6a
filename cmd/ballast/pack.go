package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/convert/carton"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/push"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/opencontainers/go-digest"
)

// formCarton is the form that is a file.
const formCarton = "carton"

// isCarton reports whether a source is a carton already.
func isCarton(src *resolve.Source) bool {
	return src.Model.Table.Origin.Format == string(mediatype.FormatCarton)
}

// unpackedCarton makes the files of src those of a carton that was never packed.
func unpackedCarton(src *resolve.Source, name string, facts carton.Facts) error {
	if src.Model.Table.Origin.Format != string(mediatype.FormatFiles) {
		return usage("%s: --runner and --runner-framework are for a directory that is no carton, or for --as carton", name)
	}
	model, err := carton.FromFiles(src.Model, facts)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	src.Model = model
	return nil
}

// pack writes a model as a packed carton.
func (a *app) pack(ctx context.Context, from, to string, o push.Options, facts carton.Facts, out output) (err error) {
	if !strings.HasSuffix(strings.ToLower(to), ".carton") {
		return usage("%s: --as carton writes a file, whose name ends in .carton", to)
	}
	start := time.Now()
	_, src, closeSrc, err := a.source(ctx, from, o.TempDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeSrc()) }()
	switch stated := facts != (carton.Facts{}); {
	case isCarton(src) && stated:
		return usage("%s: it is a carton, which says itself what its runner is", from)
	case !isCarton(src) && !stated:
		return usage("%s: it is no carton: name what loads it with --runner and --runner-framework", from)
	}
	p := a.progress(to, out)
	o.Log, o.Progress = a.log(), follow(p)
	res := &push.Result{Form: formCarton}
	res.Losses, err = push.Files(ctx, src, o, func(files []push.File) (err error) {
		var members []carton.Member
		for _, f := range files {
			members = append(members, carton.Member{Path: f.Path, Size: f.Size, Digest: f.Digest, Open: f.Open})
		}
		res.Digest, res.Size, err = writeFile(to, func(w *os.File) (digest.Digest, error) {
			return carton.Pack(ctx, w, members, src.Model.Config, facts)
		})
		return err
	})
	p.end()
	if err != nil {
		return fmt.Errorf("convert %s: %w", from, err)
	}
	for _, l := range res.Losses {
		fmt.Fprintf(a.stderr, "ballast: not kept: %s\n", printable(l))
	}
	res.Sent = res.Size
	return a.converted(conversion{Source: from, Target: to, Origin: src.Model.Table.Origin, Result: res}, out, time.Since(start))
}

// writeFile writes a file that has its name only when it is complete. It returns what write returns, and the
// size of the file in bytes.
func writeFile(name string, write func(w *os.File) (digest.Digest, error)) (d digest.Digest, n int64, err error) {
	f, err := os.CreateTemp(filepath.Dir(name), ".ballast-*.carton")
	if err != nil {
		return "", 0, err
	}
	defer func() {
		if err != nil {
			f.Close() // the error is known
			os.Remove(f.Name())
		}
	}()
	if d, err = write(f); err != nil {
		return "", 0, err
	}
	info, err := f.Stat()
	if err == nil {
		err = errors.Join(f.Chmod(0o644), f.Sync())
	}
	if err != nil {
		return "", 0, err
	}
	return d, info.Size(), errors.Join(os.Rename(f.Name(), name), f.Close())
}

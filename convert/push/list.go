package push

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"

	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
)

// A File is a regular file of a model.
type File struct {
	Path   string
	Size   int64 // in bytes
	Digest digest.Digest
	Open   Opener // verified
}

// Files calls fn with the files of a model, sorted by path: symbolic links are files with the content of their
// targets. What is in archives is unpacked before, and gone afterwards. It returns what is left out, and the
// errors of Convert and fn.
func Files(ctx context.Context, src *resolve.Source, o Options, fn func([]File) error) (losses []string, err error) {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Progress == nil {
		o.Progress = func([]store.Progress) {}
	}
	c := &conversion{src: src, o: o, losses: src.Losses}
	defer func() {
		if closeErr := c.work.Close(); closeErr != nil && err == nil {
			err = fmt.Errorf("temporary store: %w", closeErr)
		}
	}()
	all, err := c.files(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", src.Name, err)
	}
	var list []File
	for _, f := range c.withoutFullDirs(c.withoutLinks(all)) {
		if f.Type != filetable.TypeReg {
			c.lose("directory %q, which is empty", f.Path)
			continue
		}
		list = append(list, File{f.Path, f.Size, f.Digest, f.open})
	}
	return c.losses, fn(list)
}

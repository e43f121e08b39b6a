package push

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A file is a file of the model with a way to read it.
type file struct {
	filetable.File
	kind mediatype.Kind

	// fromBlob says that the file is a blob of the source as it is.
	fromBlob bool

	// open returns the content, verified.
	open func(ctx context.Context) (io.ReadCloser, error)
}

// The store in which archives are unpacked.
const (
	tempConnections = 4
	tempReserve     = 256 << 20 // bytes that stay free
)

// A workspace is a temporary store for what is not a blob of the source.
type workspace struct {
	dir   string
	store *store.Store
}

func newWorkspace(dir string, log *slog.Logger) (*workspace, error) {
	d, err := os.MkdirTemp(dir, "ballast-convert-")
	if err != nil {
		return nil, err
	}
	s, err := store.Open(d, store.Options{Connections: tempConnections, Reserve: tempReserve, Log: log})
	if err != nil {
		os.RemoveAll(d)
		return nil, err
	}
	return &workspace{d, s}, nil
}

// Close removes the store.
func (w *workspace) Close() error {
	if w == nil {
		return nil
	}
	return cmp.Or(w.store.Close(), os.RemoveAll(w.dir))
}

// isFile reports whether a blob is a file as it is.
func isFile(b filetable.Blob) bool {
	return b.Archive == filetable.ArchiveNone && b.Codec == filetable.CodecNone
}

// files returns the files of the model, by path, each once. Those that are not blobs are brought
// into the workspace, but for a dry run: then those whose digest is not known have none, and what is in compressed archives
// is left out.
func (c *conversion) files(ctx context.Context) ([]file, error) {
	t := &c.src.Model.Table
	rest, all := filetable.Table{Version: t.Version, Origin: t.Origin, Unpacks: t.Unpacks, Stacked: t.Stacked}, []file{}
	blobs := map[digest.Digest]filetable.Blob{}
	for _, b := range t.Blobs {
		blobs[b.Digest] = b
		if !isFile(b) || t.Stacked {
			rest.Blobs = append(rest.Blobs, b)
		}
	}
	for _, f := range t.Files {
		switch {
		case t.Stacked:
			rest.Files = append(rest.Files, f) // one can hide another
		case f.Source == nil:
			all = append(all, file{File: f})
		case len(f.Source.Parts) == 0 && f.Source.Blob == "":
			all = append(all, file{File: f, kind: generatedKind(f.Path), open: opener(f.Source.Inline)})
		case len(f.Source.Parts) == 0 && isFile(blobs[f.Source.Blob]):
			all = append(all, file{File: f, kind: c.kind(f), fromBlob: true, open: c.blob(f.Digest, f.Size, nil)})
		default:
			rest.Files = append(rest.Files, f)
		}
	}
	unpacked, err := c.unpack(ctx, &rest)
	if err != nil {
		return nil, err
	}
	return settle(t, append(all, unpacked...), c.o.DryRun)
}

// settle sorts files, makes each path occur once, and checks that they fit together.
func settle(t *filetable.Table, all []file, partly bool) ([]file, error) {
	slices.SortStableFunc(all, func(a, b file) int { return cmp.Compare(a.Path, b.Path) })
	if !partly {
		flat := flatten(t.Origin, all)
		if err := flat.Validate(); err != nil {
			return nil, err
		}
	}
	return slices.CompactFunc(all, func(a, b file) bool { return a.Path == b.Path }), nil
}

// flatten returns the table of files of which each is a blob.
func flatten(o filetable.Origin, files []file) *filetable.Table {
	t := &filetable.Table{Version: filetable.Version, Origin: o}
	seen := map[digest.Digest]bool{}
	for _, f := range files {
		if f.Type == filetable.TypeReg {
			if !seen[f.Digest] {
				seen[f.Digest] = true
				t.Blobs = append(t.Blobs, filetable.Blob{Digest: f.Digest, Size: f.Size, Layer: len(t.Blobs)})
			}
			f.Source = &filetable.Source{Blob: f.Digest, Size: f.Size}
		}
		t.Files = append(t.Files, f.File)
	}
	return t
}

// unpack brings the blobs of t into the workspace and returns its files.
func (c *conversion) unpack(ctx context.Context, t *filetable.Table) ([]file, error) {
	var all []file
	if len(t.Blobs) == 0 {
		return nil, nil
	}
	if c.o.DryRun {
		for _, f := range t.Seen() {
			all = append(all, file{File: f, kind: convert.KindByPath(f.Path)})
		}
		return all, nil
	}
	var err error
	if c.work == nil {
		if c.work, err = newWorkspace(c.o.TempDir, c.o.Log); err != nil {
			return nil, fmt.Errorf("temporary store: %w", err)
		}
	}
	p, err := t.Encode()
	if err != nil {
		return nil, err
	}
	d, err := c.work.store.PutTable(ctx, p)
	if err != nil {
		return nil, err
	}
	if err := c.work.store.AddRef(ctx, "pin/convert", d, time.Time{}); err != nil {
		return nil, err
	}
	err = c.work.store.Hydrate(ctx, d, store.HydrateOptions{Sources: []transfer.Source{{Name: "convert", Fetcher: c.src.Fetcher}}, Progress: unpacking(c.o.Progress)})
	if err != nil {
		return nil, fmt.Errorf("unpack: %w", err)
	}
	files, err := c.work.store.Files(ctx, d)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if f.Type == filetable.TypeReg {
			all = append(all, file{File: f, kind: c.kind(f), open: c.object(f.Digest, f.Size)})
		} else {
			all = append(all, file{File: f})
		}
	}
	return all, nil
}

// unpacking returns show for what is read to be unpacked: an archive and its file can have one name.
func unpacking(show func([]store.Progress)) func([]store.Progress) {
	if show == nil {
		return nil
	}
	return func(all []store.Progress) {
		named := slices.Clone(all)
		for i := range named {
			named[i].Name += " (to unpack)"
		}
		show(named)
	}
}

// kind returns the kind of a file: that of its layer, if it is alone there.
func (c *conversion) kind(f filetable.File) mediatype.Kind {
	if f.Source == nil || len(f.Source.Parts) > 0 {
		return convert.KindByPath(f.Path)
	}
	for i, l := range c.src.Model.Layers {
		if l.Desc.Digest == f.Source.Blob && l.Kind != "" && (isFile(c.src.Model.Table.Blobs[i]) || l.Path == f.Path) {
			return l.Kind
		}
	}
	return convert.KindByPath(f.Path)
}

// generatedKind returns the kind of a file that ballast made.
func generatedKind(p string) mediatype.Kind {
	switch base := path.Base(p); {
	case strings.HasPrefix(p, "ollama/"), strings.HasPrefix(p, originDir), base == "Modelfile", base == "MANIFEST", base == "LINKS":
		return mediatype.KindDoc
	}
	return convert.KindByPath(p)
}

// opener returns a function that opens bytes.
func opener(p []byte) func(context.Context) (io.ReadCloser, error) {
	return func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(p)), nil }
}

// blob returns a function that opens a blob of the source, which passes by also().
func (c *conversion) blob(d digest.Digest, size int64, also func() *passage) func(context.Context) (io.ReadCloser, error) {
	return func(ctx context.Context) (io.ReadCloser, error) {
		var p *passage
		if also != nil {
			p = also()
		}
		return openBlob(ctx, c.src.Fetcher, d, size, p), nil
	}
}

// object returns a function that opens an object of the workspace.
func (c *conversion) object(d digest.Digest, size int64) func(context.Context) (io.ReadCloser, error) {
	return func(context.Context) (io.ReadCloser, error) {
		f, err := c.work.store.OpenObject(d)
		if err != nil {
			return nil, err
		}
		return struct {
			io.Reader
			io.Closer
		}{verify.NewReader(f, d, size), f}, nil
	}
}

// checkWhiteouts returns an error for a name that would take away files in an image.
func checkWhiteouts(files []file) error {
	for _, f := range files {
		if filetable.IsWhiteout(f.Path) {
			return fmt.Errorf("file %q: the name means a deletion in an image: %w", f.Path, errdefs.ErrNotImplemented)
		}
	}
	return nil
}

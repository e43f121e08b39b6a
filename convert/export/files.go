package export

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
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

// A file is a file of the model with a function to read it.
type file struct {
	filetable.File
	kind mediatype.Kind

	// fromBlob reports whether the file is a blob of the source.
	fromBlob bool

	open content
}

// copy writes the content of a regular file to w.
func (f file) copy(ctx context.Context, w io.Writer) error {
	r, err := f.open(ctx, nil)
	if err != nil {
		return fmt.Errorf("file %q: %w", f.Path, err)
	}
	defer r.Close()
	n, err := io.CopyBuffer(w, r, make([]byte, bufferSize))
	if err == nil && n != f.Size {
		err = fmt.Errorf("got %d of %d bytes: %w", n, f.Size, io.ErrUnexpectedEOF)
	}
	if err != nil {
		return fmt.Errorf("file %q: %w", f.Path, err)
	}
	return nil
}

// Limits of the store in which archives are unpacked.
const (
	tempConnections = 4
	tempReserve     = 256 << 20 // bytes of free space
)

// sourceName is the name of the source of the temporary store.
const sourceName = "convert"

// openStore opens a temporary store for files that are not blobs of the source, unless it is open.
func (j *job) openStore() (err error) {
	if j.store != nil {
		return nil
	}
	if j.dir, err = os.MkdirTemp(j.o.TempDir, "ballast-convert-"); err != nil {
		return err
	}
	j.store, err = store.Open(j.dir, store.Options{Connections: tempConnections, Reserve: tempReserve, Log: j.o.Log})
	return err
}

// close removes the temporary store.
func (j *job) close() error {
	var err error
	if j.store != nil {
		err = j.store.Close()
	}
	if err = cmp.Or(err, os.RemoveAll(j.dir)); err != nil {
		return fmt.Errorf("temporary store: %w", err)
	}
	return nil
}

// isFile reports whether a blob is a file.
func isFile(b filetable.Blob) bool {
	return b.Archive == filetable.ArchiveNone && b.Codec == filetable.CodecNone
}

// files returns the files of the model, by path, without duplicates. Those that are not blobs are
// unpacked into the temporary store, except in a dry run: then files without a known digest have none,
// and the content of compressed archives is left out.
func (j *job) files(ctx context.Context) ([]file, error) {
	t := &j.src.Model.Table
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
			rest.Files = append(rest.Files, f) // a file can hide another one
		case f.Source == nil:
			all = append(all, file{File: f})
		case len(f.Source.Parts) == 0 && f.Source.Blob == "":
			all = append(all, file{File: f, kind: generatedKind(f.Path), open: contentOf(opener(f.Source.Inline))})
		case len(f.Source.Parts) == 0 && isFile(blobs[f.Source.Blob]):
			all = append(all, file{File: f, kind: j.kind(f), fromBlob: true, open: j.blob(f.Digest, f.Size)})
		default:
			rest.Files = append(rest.Files, f)
		}
	}
	unpacked, err := j.unpack(ctx, &rest)
	if err != nil {
		return nil, err
	}
	return consistent(t, append(all, unpacked...), j.o.DryRun)
}

// placed returns files at their paths in a mount, for forms without a file table.
func (j *job) placed(files []file) ([]file, error) {
	paths := make([]filetable.File, len(files))
	for i, f := range files {
		paths[i] = f.File
	}
	paths, err := filetable.Place(j.src.Model.Table.Origin.Prefix, paths)
	if err != nil {
		return nil, err
	}
	out := slices.Clone(files)
	for i := range out {
		out[i].File, out[i].kind = paths[i], cmp.Or(files[i].kind, convert.KindByPath(files[i].Path))
	}
	return out, nil
}

// consistent sorts files, removes duplicate paths, and checks that the files are consistent.
func consistent(t *filetable.Table, all []file, partly bool) ([]file, error) {
	slices.SortStableFunc(all, func(a, b file) int { return cmp.Compare(a.Path, b.Path) })
	if !partly {
		flat := flatten(t.Origin, all)
		if err := flat.Validate(); err != nil {
			return nil, err
		}
	}
	return slices.CompactFunc(all, func(a, b file) bool { return a.Path == b.Path }), nil
}

// flatten returns the table of files that are each a blob.
func flatten(o filetable.Origin, files []file) *filetable.Table {
	t := &filetable.Table{Version: filetable.Version, Origin: o}
	seen := map[digest.Digest]bool{}
	for _, f := range files {
		if f.Type == filetable.TypeReg {
			if f.Digest == "" || !seen[f.Digest] {
				seen[f.Digest] = true
				t.Blobs = append(t.Blobs, filetable.Blob{Digest: f.Digest, Size: f.Size, Layer: len(t.Blobs)})
			}
			f.Source = &filetable.Source{Blob: f.Digest, Size: f.Size}
		}
		t.Files = append(t.Files, f.File)
	}
	return t
}

// unpack downloads the blobs of t into the temporary store and returns its files.
func (j *job) unpack(ctx context.Context, t *filetable.Table) ([]file, error) {
	var all []file
	if len(t.Blobs) == 0 {
		return nil, nil
	}
	if j.o.DryRun {
		for _, f := range t.Seen() {
			all = append(all, file{File: f, kind: convert.KindByPath(f.Path)})
		}
		return all, nil
	}
	if err := j.openStore(); err != nil {
		return nil, fmt.Errorf("temporary store: %w", err)
	}
	p, err := t.Encode()
	if err != nil {
		return nil, err
	}
	d, err := j.store.PutTable(p)
	if err != nil {
		return nil, err
	}
	if err := j.store.AddRef("pin/convert", d, time.Time{}); err != nil {
		return nil, err
	}
	err = j.store.Hydrate(ctx, d, store.HydrateOptions{Sources: []transfer.Source{{Name: sourceName, Fetcher: j.src.Fetcher}}, Progress: unpacking(j.o.Progress)})
	if err != nil {
		return nil, fmt.Errorf("unpack: %w", err)
	}
	files, err := j.store.Views.Files(d)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if f.Type == filetable.TypeReg {
			all = append(all, file{File: f, kind: j.kind(f), open: j.object(f.Digest, f.Size)})
		} else {
			all = append(all, file{File: f})
		}
	}
	return all, nil
}

// unpacking returns show for what is read for unpacking: an archive and its file can have the same
// name.
func unpacking(show func([]store.Progress)) func([]store.Progress) {
	return func(all []store.Progress) {
		named := slices.Clone(all)
		for i := range named {
			named[i].Name += " (to unpack)"
		}
		show(named)
	}
}

// kind returns the kind of a file: that of its layer, if it is the only file in it.
func (j *job) kind(f filetable.File) mediatype.Kind {
	if f.Source == nil || len(f.Source.Parts) > 0 {
		return convert.KindByPath(f.Path)
	}
	for i, l := range j.src.Model.Layers {
		if l.Desc.Digest == f.Source.Blob && l.Kind != "" && (isFile(j.src.Model.Table.Blobs[i]) || l.Path == f.Path) {
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

// opener returns an Opener of p.
func opener(p []byte) Opener {
	return func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(p)), nil }
}

// blob returns a blob of the source.
func (j *job) blob(d digest.Digest, size int64) content {
	return func(ctx context.Context, seen *passage) (io.ReadCloser, error) {
		return openBlob(ctx, j.src.Fetcher, d, size, seen), nil
	}
}

// object returns an object of the temporary store.
func (j *job) object(d digest.Digest, size int64) content {
	return contentOf(func(ctx context.Context) (io.ReadCloser, error) {
		f, err := j.store.OpenObject(d, []string{sourceName})
		if err != nil {
			return nil, err
		}
		return reading(&untilDone{ctx, verify.NewReader(f, d, size)}, f), nil
	})
}

// checkWhiteouts returns an error for a name that would remove files in an image.
func checkWhiteouts(files []file) error {
	for _, f := range files {
		if filetable.IsWhiteout(f.Path) {
			return fmt.Errorf("file %q: the name means a deletion in an image: %w", f.Path, errdefs.ErrNotImplemented)
		}
	}
	return nil
}

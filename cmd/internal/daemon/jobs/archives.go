package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/layout"
	"github.com/ballast-dev/ballast/convert/local"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// extracted is the prefix of the names of directories with an extracted archive.
const extracted = "import-"

// RemoveExtracted removes what imports of an earlier daemon left in a directory.
func RemoveExtracted(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), extracted) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// blobs has the blobs of a layout.
type blobs struct{ *layout.Layout }

// Artifact implements registry.Blobs.
func (b blobs) Artifact(ctx context.Context, desc ocispec.Descriptor) (convert.Artifact, error) {
	return b.At(ctx, desc)
}

// ImportArchive imports the models of an archive: all of them, or none. stream has the archive if the request
// has no path. If ctx ends while the stream is read, nothing is imported; later, the job continues.
func (js *Jobs) ImportArchive(ctx context.Context, r wire.ArchiveRequest, stream io.Reader, event func([]wire.Event) error) ([]wire.Imported, error) {
	dir, remove, err := js.layoutOf(ctx, r.Path, stream)
	if err != nil {
		return nil, err
	}
	name := archiveName(r) // with what makes another result
	if dir != r.Path {
		name += ", extracted to " + dir
	}
	if r.Private {
		name += ", private"
	}
	j, err := js.join(ctx, wire.KindImport, name, "", pinFor(false, r.TTL), func(ctx context.Context, j *job) (_ store.Image, err error) {
		defer func() { err = errors.Join(err, remove()) }()
		return js.importLayout(ctx, j, dir, r)
	})
	if err != nil {
		return nil, errors.Join(err, remove())
	}
	return js.imported(ctx, j, event)
}

// archiveName returns the name of an import in messages.
func archiveName(r wire.ArchiveRequest) string {
	name := cmp.Or(r.Path, "stdin")
	if r.Tag != "" {
		name += ":" + r.Tag
	}
	if r.Name != "" {
		name += " as " + r.Name
	}
	return name
}

// layoutOf returns the directory of the OCI layout in an archive, and a function that removes what was
// extracted.
func (js *Jobs) layoutOf(ctx context.Context, path string, stream io.Reader) (dir string, remove func() error, err error) {
	if path != "" {
		info, err := os.Stat(path)
		if err != nil {
			return "", nil, err
		}
		if info.IsDir() {
			return path, func() error { return nil }, nil
		}
		f, _, err := local.OpenFile(path)
		if err != nil {
			return "", nil, err
		}
		defer f.Close()
		stream = f
	}
	if dir, err = os.MkdirTemp(js.Temp, extracted); err != nil {
		return "", nil, err
	}
	remove = func() error { return os.RemoveAll(dir) }
	root, err := os.OpenRoot(dir)
	if err == nil {
		err = errors.Join(layout.Extract(ctx, stream, root, js.Store.Room), root.Close())
	}
	if err != nil {
		return "", nil, errors.Join(err, remove())
	}
	return dir, remove, nil
}

// importLayout is the work of an import of the layout in a directory.
func (js *Jobs) importLayout(ctx context.Context, j *job, dir string, r wire.ArchiveRequest) (_ store.Image, err error) {
	l, entries, err := layout.OpenAll(dir)
	if err != nil {
		return store.Image{}, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	named, err := chosen(entries, r)
	if err != nil {
		return store.Image{}, err
	}
	im, err := js.importAll(ctx, j, archiveName(r), blobs{l}, named, registry.ImportOptions{Private: r.Private})
	if errors.Is(err, convert.ErrNotModel) {
		err = fmt.Errorf("%w; import images with \"ctr images import\": %w", err, errdefs.ErrNotImplemented)
	}
	return im, err
}

// A chosenEntry is a manifest to import, with its reference.
type chosenEntry struct {
	ref  remote.Ref
	desc ocispec.Descriptor
}

// chosen returns the entries to import. With a name there must be one manifest, which gets it.
func chosen(entries []layout.Entry, r wire.ArchiveRequest) (l []chosenEntry, err error) {
	seen := map[string]digest.Digest{}
	for _, e := range entries {
		if r.Tag != "" && r.Tag != e.Name && r.Tag != e.Digest.String() {
			continue
		}
		ref, err := registry.ImportName(r.Name, e.Name)
		if err != nil {
			return nil, err
		}
		switch d, ok := seen[ref.String()]; {
		case ok && d == e.Digest:
			continue
		case ok && r.Name != "":
			return nil, fmt.Errorf("--name is for one image, and there are several; choose one by its tag, as in oci:DIR:TAG: %w", errdefs.ErrInvalidArgument)
		case ok:
			return nil, fmt.Errorf("the archive has several images called %s: %w", ref, errdefs.ErrInvalidArgument)
		}
		seen[ref.String()] = e.Digest
		l = append(l, chosenEntry{ref, e.Descriptor})
	}
	if len(l) == 0 {
		return nil, fmt.Errorf("the index of the archive has no manifest%s: %w", strings.TrimSuffix(" "+r.Tag, " "), errdefs.ErrNotFound)
	}
	return l, nil
}

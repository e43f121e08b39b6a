package layout

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/local"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// Link makes a file a blob by a hard link, in place of the file that the layout has for it. The file must have the
// bytes of the blob, which are not read, and nothing may write into it. The error is unix.EXDEV if it is on another
// file system.
func (l *Layout) Link(d digest.Digest, size int64, file string) error {
	dir, err := l.root.Open(blobsDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	temp := ingest + rand.Text()
	if err := unix.Linkat(unix.AT_FDCWD, file, int(dir.Fd()), temp, 0); err != nil {
		return &fs.PathError{Op: "link", Path: file, Err: err}
	}
	defer l.root.Remove(path.Join(blobsDir, temp)) // still there after an error, and if the blob is this file already
	info, err := l.root.Lstat(path.Join(blobsDir, temp))
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() != size {
		return fmt.Errorf("%s is not a file of %d bytes: %w", file, size, errdefs.ErrDataLoss)
	}
	return l.root.Rename(path.Join(blobsDir, temp), blobPath(d))
}

// Remove removes the tag, and of the manifest with it, if that is not nil, what Prune removes. It changes nothing if
// Prune could not tell what others need. It returns errdefs.ErrNotFound if the index has no such tag.
func (l *Layout) Remove(ctx context.Context, manifest []byte) error {
	unlock, err := l.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	idx, err := l.index()
	if err != nil {
		return err
	}
	n := len(idx.Manifests)
	idx.Manifests = slices.DeleteFunc(idx.Manifests, func(o ocispec.Descriptor) bool { return o.Annotations[mediatype.AnnotationRefName] == l.tag })
	if len(idx.Manifests) == n {
		return fmt.Errorf("%s: no such manifest: %w", l, errdefs.ErrNotFound)
	}
	needed, err := l.needed(ctx, idx)
	if err != nil {
		return err
	}
	if err := l.write(ocispec.ImageIndexFile, idx); err != nil || manifest == nil {
		return err
	}
	return l.prune(manifest, needed)
}

// Prune removes a manifest, its config and its layers. What the manifests in the index need stays; one whose file is
// missing or damaged needs nothing, for nobody can read it.
func (l *Layout) Prune(ctx context.Context, manifest []byte) error {
	unlock, err := l.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	idx, err := l.index()
	if err != nil {
		return err
	}
	needed, err := l.needed(ctx, idx)
	if err != nil {
		return err
	}
	return l.prune(manifest, needed)
}

// needed returns the blobs that the manifests in an index need.
func (l *Layout) needed(ctx context.Context, idx ocispec.Index) (map[digest.Digest]bool, error) {
	needed := map[digest.Digest]bool{}
	for _, o := range idx.Manifests {
		p, err := l.ReadBlob(ctx, o, convert.MaxManifestSize)
		if errdefs.IsNotFound(err) || errdefs.IsDataLoss(err) {
			continue
		}
		var m *convert.Manifest
		if err == nil {
			m, err = convert.ParseManifest(p)
		}
		if err == nil && len(m.Manifests) > 0 {
			err = fmt.Errorf("it is an index: %w", errdefs.ErrNotImplemented)
		}
		if err != nil {
			return nil, fmt.Errorf("what %s %s needs: %w", o.Digest, o.Annotations[mediatype.AnnotationRefName], err)
		}
		for _, d := range blobsOf(m) {
			needed[d] = true
		}
	}
	return needed, nil
}

// prune is Prune, with what is needed.
func (l *Layout) prune(manifest []byte, needed map[digest.Digest]bool) error {
	m, err := convert.ParseManifest(manifest)
	if err != nil {
		return err
	}
	for _, d := range blobsOf(m) {
		if _, err := verify.ParseDigest(d.String()); err != nil || needed[d] {
			continue
		}
		if err := l.root.Remove(blobPath(d)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Sweep removes the blobs that writers which were killed have not finished. No other may write.
func (l *Layout) Sweep() error {
	entries, err := local.ReadDir(l.root, blobsDir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ingest) {
			err = errors.Join(err, l.root.Remove(path.Join(blobsDir, e.Name())))
		}
	}
	return err
}

// blobsOf returns the digests of a manifest, its config and its layers.
func blobsOf(m *convert.Manifest) []digest.Digest {
	all := []digest.Digest{m.Digest, m.Config.Digest}
	for _, d := range m.Layers {
		all = append(all, d.Digest)
	}
	return all
}

package layout

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"github.com/ballast-dev/ballast/convert"
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
	temp := ".ingest-" + rand.Text()
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

// Untag removes the tag from the index. The blobs stay; see Prune.
func (l *Layout) Untag(ctx context.Context) error {
	unlock, err := l.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	idx, err := l.index()
	if err != nil {
		return err
	}
	idx.Manifests = slices.DeleteFunc(idx.Manifests, func(o ocispec.Descriptor) bool { return o.Annotations[mediatype.AnnotationRefName] == l.tag })
	return l.write(ocispec.ImageIndexFile, idx)
}

// Prune removes a manifest, its config and its layers. What the manifests in the index need stays.
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
	needed := map[digest.Digest]bool{}
	for _, o := range idx.Manifests {
		p, err := l.ReadBlob(ctx, o, convert.MaxManifestSize)
		if err != nil {
			return err
		}
		m, err := convert.ParseManifest(p)
		if err != nil {
			return err
		}
		if len(m.Manifests) > 0 {
			return fmt.Errorf("%s is an index: %w", o.Digest, errdefs.ErrNotImplemented)
		}
		for _, d := range blobsOf(m) {
			needed[d] = true
		}
	}
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

// blobsOf returns the digests of a manifest, its config and its layers.
func blobsOf(m *convert.Manifest) []digest.Digest {
	all := []digest.Digest{m.Digest, m.Config.Digest}
	for _, d := range m.Layers {
		all = append(all, d.Digest)
	}
	return all
}

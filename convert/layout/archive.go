package layout

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// dockerManifest is the index of an archive of "docker save". One with an OCI layout has both.
const dockerManifest = "manifest.json"

// maxEntries limits the entries of an archive. Other memory than the window of zstd is constant.
const maxEntries = 100_000

// member matches the names that are extracted.
var member = regexp.MustCompile(`^(?:blobs/sha256/[0-9a-f]{64}|index\.json|oci-layout|manifest\.json)$`)

// Extract writes the OCI layout in an archive to an empty directory: a tar file, plain or compressed with
// gzip or zstd, as written by "docker save", "ctr images export" or skopeo. Other members are not
// extracted. Blobs are not verified. room is called with the number of bytes about to be written, of at
// most 1 MiB; its error ends the extraction.
//
// It returns errdefs.ErrInvalidArgument, with the reason, if r is no such archive.
func Extract(ctx context.Context, r io.Reader, dir *os.Root, room func(n int64) error) error {
	plain, err := decompress(bufio.NewReaderSize(r, bufferSize))
	if err != nil {
		return err
	}
	defer plain.Close()
	if err := dir.MkdirAll(blobsDir, 0o755); err != nil {
		return err
	}
	archive, buf, seen := tar.NewReader(plain), make([]byte, bufferSize), map[string]bool{}
	for n := 0; ; n++ {
		h, err := archive.Next()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == io.EOF:
			return complete(seen)
		case err != nil:
			return fmt.Errorf("the archive is damaged, or not a tar file: %w: %w", err, errdefs.ErrInvalidArgument)
		case n == maxEntries:
			return fmt.Errorf("the archive has more than %d members: %w", maxEntries, errdefs.ErrInvalidArgument)
		}
		name := path.Clean(h.Name)
		if !member.MatchString(name) {
			continue
		}
		if err := isFile(h, name); err != nil {
			return err
		}
		if seen[name] {
			return fmt.Errorf("the archive has %s twice: %w", name, errdefs.ErrInvalidArgument)
		}
		seen[name] = true
		if err := extract(ctx, archive, dir, name, buf, room); err != nil {
			return err
		}
	}
}

func isFile(h *tar.Header, name string) error {
	if h.Typeflag != tar.TypeReg {
		return fmt.Errorf("%s of the archive is a link or a special file, not a regular one: %w", name, errdefs.ErrInvalidArgument)
	}
	if path.Dir(name) == "." && h.Size > maxIndex {
		return fmt.Errorf("%s of the archive has more than %d bytes: %w", name, maxIndex, errdefs.ErrInvalidArgument)
	}
	return nil
}

// complete checks that an archive with these members is an OCI layout.
func complete(seen map[string]bool) error {
	switch {
	case seen[ocispec.ImageIndexFile] && seen[ocispec.ImageLayoutFile]:
		return nil
	case seen[dockerManifest]:
		return fmt.Errorf("the archive has only images in Docker's own form, which has no models; import it with \"ctr images import\": %w", errdefs.ErrInvalidArgument)
	}
	return fmt.Errorf("the archive is no OCI layout: it has no %s or no %s: %w", ocispec.ImageIndexFile, ocispec.ImageLayoutFile, errdefs.ErrInvalidArgument)
}

// decompress returns the bytes of a tar file.
func decompress(r *bufio.Reader) (io.ReadCloser, error) {
	magic, err := r.Peek(4) // shorter ones fail as tar files
	switch {
	case len(magic) == 0 && err != nil && err != io.EOF:
		return nil, err
	case len(magic) >= 2 && magic[0] == 0x1f && magic[1] == 0x8b:
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, fmt.Errorf("the archive is damaged: %w: %w", err, errdefs.ErrInvalidArgument)
		}
		return z, nil
	case string(magic) == "\x28\xb5\x2f\xfd":
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(convert.WindowMemory))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(r), nil
}

// extract writes a member. Only root can write to the file, so that it can become an object by a link.
func extract(ctx context.Context, r io.Reader, dir *os.Root, name string, buf []byte, room func(int64) error) error {
	f, err := dir.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	w := &careful{ctx: ctx, f: f, room: room}
	_, err = io.CopyBuffer(w, struct{ io.Reader }{r}, buf)
	if err != nil && w.err == nil {
		err = fmt.Errorf("the archive is damaged: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// careful writes to a file while there is room, until ctx ends.
type careful struct {
	ctx  context.Context // io.Writer has no context parameter
	f    *os.File
	room func(int64) error
	err  error // of the last Write
}

// Write implements io.Writer.
func (c *careful) Write(p []byte) (n int, err error) {
	if c.err = context.Cause(c.ctx); c.err == nil {
		c.err = c.room(int64(len(p)))
	}
	if c.err == nil {
		n, c.err = c.f.Write(p)
	}
	return n, c.err
}

// AnnotationImageName is containerd's and Docker's annotation of an index in an archive: the whole reference.
const AnnotationImageName = "io.containerd.image.name"

// An Entry is a manifest that the index of a layout names.
type Entry struct {
	ocispec.Descriptor

	// Name is the reference of the image, or only a tag, or empty.
	Name string
}

// OpenAll opens a layout and returns the manifests in its index, without those that only refer to others.
func OpenAll(dir string) (*Layout, []Entry, error) {
	if !Is(dir) {
		return nil, nil, notLayout(dir)
	}
	l, err := openDir(dir, "")
	if err != nil {
		return nil, nil, err
	}
	idx, err := l.index()
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%s: %w", l, err), l.Close())
	}
	var all []Entry
	for _, d := range idx.Manifests {
		e := Entry{Descriptor: d, Name: d.Annotations[AnnotationImageName]}
		if e.Name == "" {
			e.Name = d.Annotations[mediatype.AnnotationRefName]
		}
		if e.Name == "" && d.ArtifactType == mediatype.Bundle {
			continue // a signature of another manifest
		}
		all = append(all, e)
	}
	return l, all, nil
}

// At returns the manifest with a descriptor, which is verified, and the blobs of the layout. Only l needs a
// Close.
func (l *Layout) At(ctx context.Context, desc ocispec.Descriptor) (*Layout, error) {
	p, err := l.ReadBlob(ctx, desc, convert.MaxManifestSize)
	if err != nil {
		return nil, fmt.Errorf("manifest %s: %w", desc.Digest, err)
	}
	return &Layout{dir: l.dir, tag: l.tag, root: l.root, manifest: p, sync: l.sync}, nil
}

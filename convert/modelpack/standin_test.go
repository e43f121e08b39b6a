package modelpack_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"path"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A standIn is an artifact with a real manifest only. It returns the same config and the same layer
// for every digest, as a lying registry would.
type standIn struct {
	manifest, config []byte
	layer            []byte // nil for a tar of the right size with the file of the annotation
}

func (s *standIn) Manifest() []byte { return s.manifest }

func (s *standIn) ReadBlob(_ context.Context, desc ocispec.Descriptor, limit int64) ([]byte, error) {
	if int64(len(s.config)) > limit {
		return nil, fmt.Errorf("blob %s: %w", desc.Digest, errdefs.ErrInvalidArgument)
	}
	return s.config, nil
}

func (s *standIn) BlobAt(_ context.Context, desc ocispec.Descriptor) (io.ReaderAt, error) {
	if s.layer != nil {
		return bytes.NewReader(s.layer), nil
	}
	// A header, the content, and two blocks of zeros at the end.
	var buf bytes.Buffer
	err := tar.NewWriter(&buf).WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: path.Base(mediatype.Filepath(desc.Annotations)), Mode: 0o644, Size: desc.Size - 3*512,
	})
	return zeroPadded{head: buf.Bytes(), size: desc.Size}, err
}

// zeroPadded has zeros after its head.
type zeroPadded struct {
	head []byte
	size int64
}

func (z zeroPadded) ReadAt(p []byte, off int64) (int, error) {
	n := int(min(int64(len(p)), max(z.size-off, 0)))
	clear(p[:n])
	if off < int64(len(z.head)) {
		copy(p[:n], z.head[off:])
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

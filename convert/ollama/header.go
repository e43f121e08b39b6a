package ollama

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/safetensors"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Limits for the headers of tensor layers.
const (
	// maxHeaders limits the bytes of the headers of all layers of a model, and of the files
	// assembled from them. The largest mixture-of-experts models have 130,000 tensors, with 130
	// bytes of header each. The headers of the files are in the file table, in base64.
	maxHeaders = 24 << 20 // 24 MiB

	// maxTensorName limits the name of a tensor, in bytes.
	maxTensorName = 4096

	// lengthSize is the size of the length before a header, in bytes.
	lengthSize = 8
)

// A header is the header of a blob, and its bytes including the length.
type header struct {
	*safetensors.Header
	bytes []byte
}

// parallelHeaders limits the simultaneous reads of headers.
const parallelHeaders = 32

// readHeaders reads the headers of the blobs concurrently: each takes a request upstream. The blobs
// are layers of the manifest, without duplicate digests.
func (p *parser) readHeaders(ctx context.Context, layers []int) (map[digest.Digest]*header, error) {
	headers := make([]*header, len(layers))
	var left atomic.Int64
	left.Store(maxHeaders)
	err := convert.Parallel(len(layers), parallelHeaders, func(n int) (err error) {
		l := p.manifest.Layers[layers[n]]
		if headers[n], err = readHeader(ctx, p.artifact, l, &left); err != nil {
			return p.layerError(layers[n], err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	all := make(map[digest.Digest]*header, len(layers))
	for n, i := range layers {
		all[p.manifest.Layers[i].Digest] = headers[n]
	}
	return all, nil
}

// readHeader reads the header of a blob. left is the remaining number of bytes for headers.
func readHeader(ctx context.Context, a convert.Artifact, l convert.Descriptor, left *atomic.Int64) (*header, error) {
	if l.Size < lengthSize {
		return nil, fmt.Errorf("%d bytes are not safetensors: %w", l.Size, errdefs.ErrInvalidArgument)
	}
	r, err := a.BlobAt(ctx, l.Descriptor)
	if err != nil {
		return nil, err
	}
	if c, ok := r.(io.Closer); ok {
		defer c.Close()
	}
	var length [lengthSize]byte
	if n, err := r.ReadAt(length[:], 0); n < lengthSize {
		return nil, fmt.Errorf("safetensors header: %w", noEOF(err))
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > maxHeaders || left.Add(-int64(n)) < 0 {
		return nil, fmt.Errorf("safetensors header of %d bytes; those of all layers can have %d: %w", n, maxHeaders, errdefs.ErrInvalidArgument)
	}
	if int64(n) > l.Size-lengthSize {
		return nil, fmt.Errorf("safetensors header of %d bytes in a blob of %d: %w", n, l.Size, errdefs.ErrInvalidArgument)
	}
	if err := convert.TakeMemory(ctx, convert.DocumentWeight*int64(n)); err != nil {
		return nil, err
	}
	p := make([]byte, lengthSize+int(n))
	if got, err := r.ReadAt(p, 0); got < len(p) {
		return nil, fmt.Errorf("safetensors header: %w", noEOF(err))
	}
	h, err := safetensors.Read(p, safetensors.Options{Size: l.Size})
	if err != nil {
		return nil, err
	}
	for _, t := range h.Tensors {
		if err := checkName(t.Name); err != nil {
			return nil, err
		}
	}
	return &header{h, p}, nil
}

// noEOF returns err, but io.ErrUnexpectedEOF for io.EOF.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// metadataKey is the key of a header that is not a tensor.
const metadataKey = "__metadata__"

// checkName returns an error for an invalid name of a tensor.
func checkName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("a tensor without name: %w", errdefs.ErrInvalidArgument)
	case name == metadataKey:
		return fmt.Errorf("a tensor with the name %q: %w", name, errdefs.ErrInvalidArgument)
	case len(name) > maxTensorName:
		return fmt.Errorf("the name of a tensor has %d bytes, more than %d: %w", len(name), maxTensorName, errdefs.ErrInvalidArgument)
	}
	return nil
}

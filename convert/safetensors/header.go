package safetensors

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/ballast-dev/ballast/convert"
	"github.com/containerd/errdefs"
)

const (
	// MaxHeader is the largest header that the reference implementation reads, in bytes, without
	// the length before it.
	// https://github.com/huggingface/safetensors/blob/v0.5.3/safetensors/src/tensor.rs
	MaxHeader = 100_000_000

	// lengthSize is the size of the length before the header, in bytes.
	lengthSize = 8

	maxTensors  = 1_000_000
	maxName     = 64 << 10 // bytes
	maxDType    = 32       // bytes
	maxRank     = 64       // the limit of tensor libraries
	maxMetadata = 4 << 20  // bytes of all keys and values

	metadataKey = "__metadata__"
)

// A Header is the header of a file.
type Header struct {
	// Tensors are in the order of their data, which they cover without gaps.
	Tensors []Tensor

	// Metadata is nil if there is none.
	Metadata map[string]string

	DataOffset int64 // start of the data, in bytes from the start of the file
	DataSize   int64 // in bytes
}

// A Tensor is a tensor of a file.
type Tensor struct {
	Name   string
	DType  string // such as "BF16"
	Shape  []uint64
	Offset int64 // in bytes from the start of the data
	Size   int64 // in bytes
}

// dtypes are the sizes of elements in bits.
var dtypes = map[string]uint64{
	"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
	"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
	"I16": 16, "U16": 16, "F16": 16, "BF16": 16,
	"I32": 32, "U32": 32, "F32": 32,
	"I64": 64, "U64": 64, "F64": 64, "C64": 64,
}

// check checks that dtype and shape match the size.
func (t *Tensor) check() error {
	width, ok := dtypes[t.DType]
	if !ok {
		return nil
	}
	n, ok := convert.Elements(t.Shape)
	over, size := bits.Mul64(n, width)
	if !ok || over != 0 {
		return fmt.Errorf("tensor %.100q: a shape of more than 2^64 bits", t.Name)
	}
	if size%8 != 0 || size/8 != uint64(t.Size) {
		return fmt.Errorf("tensor %.100q: %d elements of %s in %d bytes", t.Name, n, t.DType, t.Size)
	}
	return nil
}

func invalid(err error) error {
	return fmt.Errorf("safetensors header: %w: %w", err, errdefs.ErrInvalidArgument)
}

// check sorts the tensors and checks that they cover the data, and that names are unique.
func (h *Header) check() error {
	slices.SortFunc(h.Tensors, func(x, y Tensor) int {
		return cmp.Or(cmp.Compare(x.Offset, y.Offset), cmp.Compare(x.Size, y.Size), cmp.Compare(x.Name, y.Name))
	})
	names := make(map[string]struct{}, len(h.Tensors))
	var end int64
	for i := range h.Tensors {
		t := &h.Tensors[i]
		if _, ok := names[t.Name]; ok {
			return fmt.Errorf("tensor %.100q twice", t.Name)
		}
		names[t.Name] = struct{}{}
		if t.Offset != end {
			return fmt.Errorf("tensor %.100q starts at %d, the one before it ends at %d", t.Name, t.Offset, end)
		}
		if t.Size < 0 || t.Size > math.MaxInt64-end {
			return fmt.Errorf("tensor %.100q of %d bytes", t.Name, t.Size)
		}
		end += t.Size
		if err := t.check(); err != nil {
			return err
		}
	}
	h.DataSize = end
	return nil
}

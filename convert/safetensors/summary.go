package safetensors

import (
	"cmp"
	"math/bits"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert"
)

// A Summary has what Describe needs of a header. It is small, whatever the size of the header.
type Summary struct {
	// Parameters is the number of elements of the tensors, without those in PackedBits and without
	// scales and the like; zero if unknown.
	Parameters uint64

	// PackedBits is the size in bits of quantised elements packed into larger ones, whose number
	// only the config of the model determines.
	PackedBits uint64

	Quantization string  // the quant_type of the metadata
	DTypes       []DType // of tensors that are not packed, those with most bytes first
	Bytes        uint64  // of all tensors
}

// A DType is the sum of the tensors of one dtype.
type DType struct {
	Name  string
	Bytes uint64
}

// maxDTypes limits the dtypes in a Summary.
const maxDTypes = 32

// A packing is a naming scheme of quantised tensors: the name of one ends in packed, and there is
// another that ends in one of others instead.
type packing struct {
	packed string
	others []string
	bits   uint64 // of an element, zero if the name does not determine it
}

var packings = []packing{
	// Ollama: the name of a companion is that of the tensor and a suffix.
	{"", []string{".scale", ".bias", ".global_scale"}, 0},
	// MLX
	{".weight", []string{".scales", ".biases"}, 0},
	// GPTQ and AWQ
	{".qweight", []string{".scales", ".qzeros", ".g_idx"}, 0},
	// compressed-tensors
	{".weight_packed", []string{".weight_scale", ".weight_zero_point", ".weight_shape", ".weight_g_idx", ".weight_global_scale", ".input_global_scale"}, 0},
	// MXFP4 of Transformers
	{"_blocks", []string{"_scales"}, 4},
	// bitsandbytes
	{".weight", []string{
		".weight.absmax", ".weight.quant_map", ".weight.nested_absmax", ".weight.nested_quant_map",
		".weight.quant_state.bitsandbytes__nf4", ".weight.quant_state.bitsandbytes__fp4",
	}, 4},
}

// quantBits are the bits of an element by quant_type, as Ollama writes it.
var quantBits = map[string]uint64{"nvfp4": 4, "mxfp4": 4, "mxfp8": 8, "int4": 4, "int8": 8}

// Summary returns the summary of the header.
func (h *Header) Summary() Summary {
	s := Summary{Quantization: h.quantType(), Bytes: uint64(h.DataSize)}
	packed, companions := h.packed()
	sizes := map[string]uint64{}
	known := true
	for i := range h.Tensors {
		t := &h.Tensors[i]
		if companions[t.Name] {
			continue
		}
		n, ok := convert.Elements(t.Shape)
		if width, is := packed[t.Name]; is && width == 0 {
			s.PackedBits += uint64(t.Size) * 8
			continue
		} else if is {
			n = uint64(t.Size) * 8 / width
		} else if sizes[t.DType] > 0 || len(sizes) < maxDTypes {
			sizes[t.DType] += uint64(t.Size)
		}
		sum, carry := bits.Add64(s.Parameters, n, 0)
		s.Parameters = sum
		known = known && ok && carry == 0
	}
	if !known || s.PackedBits>>60 != 0 {
		s.Parameters, s.PackedBits = 0, 0
	}
	s.DTypes = sorted(sizes)
	return s
}

// sorted returns the dtypes, those with most bytes first.
func sorted(sizes map[string]uint64) []DType {
	var list []DType
	for name, size := range sizes {
		list = append(list, DType{name, size})
	}
	slices.SortFunc(list, func(x, y DType) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Name, y.Name))
	})
	return list
}

// packed returns the packed tensors, with the bits of an element, zero if unknown, and the tensors
// that belong to them.
func (h *Header) packed() (packed map[string]uint64, companions map[string]bool) {
	names := tensorNames(h)
	packed, companions = map[string]uint64{}, map[string]bool{}
	for _, t := range h.Tensors {
		if t.DType != "U32" && t.DType != "I32" && t.DType != "U8" {
			continue
		}
		for _, p := range packings {
			base, ok := strings.CutSuffix(t.Name, p.packed)
			if !ok || !names[base+p.others[0]] {
				continue
			}
			quant := cmp.Or(h.Metadata[t.Name+".quant_type"], h.Metadata["quant_type"])
			packed[t.Name] = cmp.Or(quantBits[quant], p.bits)
			for _, o := range p.others {
				if names[base+o] {
					companions[base+o] = true
				}
			}
			break
		}
	}
	return packed, companions
}

// quantType returns the quant_type of the metadata, of the file or of all tensors that have one.
func (h *Header) quantType() string {
	found := h.Metadata["quant_type"]
	for k, v := range h.Metadata {
		if strings.HasSuffix(k, ".quant_type") {
			if found != "" && found != v {
				return ""
			}
			found = v
		}
	}
	return word(found)
}

package converttest

import (
	"encoding/binary"
	"reflect"
	"slices"
)

// A GGUFFile is what GGUF makes a file of.
// https://github.com/ggml-org/ggml/blob/v0.9.4/docs/gguf.md
type GGUFFile struct {
	Version   uint32 // zero means 3
	BigEndian bool
	Align     int // zero means 32, which needs no key
	Keys      []GGUFKey
	Tensors   []GGUFTensor
}

// A GGUFKey is a metadata entry. The Go type of the value is its type in the file: an integer of
// a fixed size, float32, float64, bool, string, or a slice of those or of slices.
type GGUFKey struct {
	Name  string
	Value any
}

// A GGUFTensor is a tensor. Data is padded, and can be short or missing: what is not there is not
// written.
type GGUFTensor struct {
	Name  string
	Shape []uint64
	Type  uint32
	Data  []byte
}

// SmallGGUF is a llama of one block, with 8,320 parameters in 3 tensors.
func SmallGGUF() GGUFFile {
	return GGUFFile{
		Keys: []GGUFKey{
			{"general.architecture", "llama"},
			{"general.type", "model"},
			{"general.name", "Small"},
			{"general.version", "v0.1"},
			{"general.license", "apache-2.0"},
			{"general.organization", "Example"},
			{"general.repo_url", "https://models.example/small"},
			{"general.languages", []string{"en", "de"}},
			{"general.file_type", uint32(7)},
			{"llama.context_length", uint32(2048)},
			{"llama.embedding_length", uint32(64)},
			{"llama.block_count", uint32(1)},
			{"tokenizer.ggml.tokens", []string{"<s>", "</s>", "a", "b"}},
			{"tokenizer.ggml.scores", []float32{0, 0, -1, -2}},
			{"tokenizer.chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}"},
		},
		Tensors: []GGUFTensor{
			{"token_embd.weight", []uint64{64, 64}, 8, make([]byte, 64*64/32*34)},
			{"blk.0.attn_q.weight", []uint64{64, 64}, 8, make([]byte, 64*64/32*34)},
			{"blk.0.attn_norm.weight", []uint64{128}, 0, make([]byte, 128*4)},
		},
	}
}

// GGUF returns the file.
func GGUF(f GGUFFile) []byte {
	w := &ggufWriter{version: f.Version, order: binary.LittleEndian}
	if w.version == 0 {
		w.version = 3
	}
	if f.BigEndian {
		w.order = binary.BigEndian
	}
	align := f.Align
	if align == 0 {
		align = 32
	} else {
		f.Keys = append(slices.Clone(f.Keys), GGUFKey{"general.alignment", uint32(align)})
	}
	w.p = append(w.p, "GGUF"...)
	w.put(w.version)
	w.count(len(f.Tensors))
	w.count(len(f.Keys))
	for _, k := range f.Keys {
		w.text(k.Name)
		v := reflect.ValueOf(k.Value)
		w.put(ggufKinds[v.Kind()])
		w.value(v)
	}
	var data []byte
	for _, t := range f.Tensors {
		w.text(t.Name)
		w.put(uint32(len(t.Shape)))
		for _, dim := range t.Shape {
			w.count(int(dim))
		}
		w.put(t.Type)
		w.put(uint64(len(data)))
		data = pad(append(data, t.Data...), align)
	}
	return append(pad(w.p, align), data...)
}

type ggufWriter struct {
	p       []byte
	version uint32
	order   binary.AppendByteOrder
}

func (w *ggufWriter) put(v any) {
	var err error
	w.p, err = binary.Append(w.p, w.order.(binary.ByteOrder), v)
	must(err)
}

func (w *ggufWriter) count(n int) {
	if w.version == 1 {
		w.put(uint32(n))
	} else {
		w.put(uint64(n))
	}
}

func (w *ggufWriter) text(s string) {
	w.count(len(s))
	w.p = append(w.p, s...)
}

// ggufKinds are the numbers of the types of values.
var ggufKinds = map[reflect.Kind]uint32{
	reflect.Uint8: 0, reflect.Int8: 1, reflect.Uint16: 2, reflect.Int16: 3, reflect.Uint32: 4, reflect.Int32: 5, reflect.Float32: 6,
	reflect.Bool: 7, reflect.String: 8, reflect.Slice: 9, reflect.Uint64: 10, reflect.Int64: 11, reflect.Float64: 12,
}

func (w *ggufWriter) value(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		w.text(v.String())
	case reflect.Slice:
		w.put(ggufKinds[v.Type().Elem().Kind()])
		w.count(v.Len())
		for i := range v.Len() {
			w.value(v.Index(i))
		}
	default:
		w.put(v.Interface())
	}
}

func pad(p []byte, align int) []byte {
	return append(p, make([]byte, (align-len(p)%align)%align)...)
}

// A SafeTensor is a tensor of a safetensors file.
type SafeTensor struct {
	Name  string
	DType string
	Shape []uint64
	Data  []byte
}

// SmallSafetensors are the tensors of a file with 4,160 parameters.
func SmallSafetensors() []SafeTensor {
	return []SafeTensor{
		{"model.embed_tokens.weight", "BF16", []uint64{64, 64}, make([]byte, 64*64*2)},
		{"model.norm.weight", "F32", []uint64{64}, make([]byte, 64*4)},
	}
}

// Safetensors returns a file of the tensors, in this order, with the header in the order of its
// names. Metadata can be nil.
// https://github.com/huggingface/safetensors/blob/v0.5.3/README.md#format
func Safetensors(tensors []SafeTensor, metadata map[string]string) []byte {
	head := map[string]any{}
	var data []byte
	for _, t := range tensors {
		shape := t.Shape
		if shape == nil {
			shape = []uint64{}
		}
		head[t.Name] = safetensorsEntry{t.DType, shape, [2]int64{int64(len(data)), int64(len(data) + len(t.Data))}}
		data = append(data, t.Data...)
	}
	if metadata != nil {
		head["__metadata__"] = metadata
	}
	return SafetensorsWith(mustJSON(head), data)
}

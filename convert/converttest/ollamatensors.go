package converttest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// A Generation is a form of tensor layers.
type Generation string

// The generations.
const (
	TensorParams Generation = "params" // 2025: bytes only; the rest is in the media type
	TensorData   Generation = "data"   // January 2026: the only key is "data"
	TensorNamed  Generation = "named"  // since February 2026: keys are names, scales are packed with their tensor
)

// Generations are all of them.
var Generations = []Generation{TensorParams, TensorData, TensorNamed}

// A TensorModel is an Ollama model with a layer for each tensor.
type TensorModel struct {
	*Built

	// Tensors are those that must be read, by file and name. Built.Files has only the files
	// that are layers or copies of them.
	Tensors map[string]map[string]SafeTensor

	// Metadata is that of the files.
	Metadata map[string]map[string]string
}

// Tensors returns n tensors of a quantised model with the given number of bytes each: the
// larger part of U32 and has a scale.
func Tensors(n, size int) []SafeTensor {
	r := rand.New(rand.NewPCG(uint64(n), uint64(size)))
	fill := func(n int) []byte {
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(r.Uint32())
		}
		return p
	}
	names := []string{"self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj", "mlp.up_proj", "input_layernorm"}
	size = max(size&^7, 8)
	var list []SafeTensor
	for i := range n {
		name := fmt.Sprintf("model.layers.%d.%s.weight", i/len(names), names[i%len(names)])
		if i%len(names) == len(names)-1 {
			list = append(list, SafeTensor{name, "BF16", []uint64{uint64(size / 2)}, fill(size)})
			continue
		}
		list = append(list,
			SafeTensor{name, "U32", []uint64{2, uint64(size / 8)}, fill(size)},
			SafeTensor{name + ".scale", "U8", []uint64{2, 4}, fill(8)})
	}
	return list
}

// OllamaLayer is a layer of an Ollama manifest.
type OllamaLayer struct {
	MediaType string        `json:"mediaType"`
	Digest    digest.Digest `json:"digest"`
	Size      int64         `json:"size"`
	Name      string        `json:"name,omitempty"`
}

// An OllamaManifest is a manifest as Ollama writes it.
type OllamaManifest struct {
	SchemaVersion int           `json:"schemaVersion"`
	MediaType     string        `json:"mediaType"`
	Config        OllamaLayer   `json:"config"`
	Layers        []OllamaLayer `json:"layers"`
}

// An OllamaBuilder makes an Ollama model layer by layer.
type OllamaBuilder struct {
	Manifest OllamaManifest
	Built    *Built
}

// NewOllama returns a builder of a model with a config; none if it is empty.
func NewOllama(name, config string) *OllamaBuilder {
	b := &OllamaBuilder{Built: &Built{
		Name: name, Format: mediatype.FormatOllama, MediaType: mediatype.DockerManifest,
		Blobs: map[digest.Digest][]byte{}, Files: map[string]File{},
	}}
	b.Manifest = OllamaManifest{SchemaVersion: 2, MediaType: mediatype.DockerManifest}
	if config != "" {
		b.Manifest.Config = b.blob(mediatype.DockerConfig, []byte(config), "")
		b.Built.Files["ollama/config.json"] = File{"ollama/config.json", []byte(config), 0o644}
	}
	return b
}

func (b *OllamaBuilder) blob(mediaType string, p []byte, name string) OllamaLayer {
	d := digest.FromBytes(p)
	b.Built.Blobs[d] = p
	return OllamaLayer{MediaType: mediaType, Digest: d, Size: int64(len(p)), Name: name}
}

// Layer adds a layer; name can be empty.
func (b *OllamaBuilder) Layer(mediaType string, p []byte, name string) {
	b.Manifest.Layers = append(b.Manifest.Layers, b.blob(mediaType, p, name))
}

// JSON adds a JSON file, which is expected in the model.
func (b *OllamaBuilder) JSON(name, text string) {
	b.Layer(mediatype.OllamaTensor[:len(mediatype.OllamaTensor)-len("tensor")]+"json", []byte(text), name)
	b.Built.Files[name] = File{name, []byte(text), 0o644}
}

// Done writes the manifest.
func (b *OllamaBuilder) Done() *Built {
	b.Built.Manifest = mustJSON(b.Manifest)
	b.Built.Files["ollama/manifest.json"] = File{"ollama/manifest.json", b.Built.Manifest, 0o644}
	return b.Built
}

const tensorConfig = `{"model_format":"safetensors","model_family":"qwen3","model_type":"27B","file_type":"nvfp4","requires":"0.19.0"}`

// OllamaTensors makes a model with a layer for each tensor, in a generation. A name with a
// slash is a tensor of a component, but in the first generation.
func OllamaTensors(g Generation, tensors []SafeTensor) *TensorModel {
	b := NewOllama("ollama-tensors-"+string(g), tensorConfig)
	m := &TensorModel{Built: b.Built, Tensors: map[string]map[string]SafeTensor{}, Metadata: map[string]map[string]string{}}
	for i := 0; i < len(tensors); i++ {
		t := tensors[i]
		file, key := "model.safetensors", t.Name
		if dir, rest, ok := strings.Cut(t.Name, "/"); ok && g != TensorParams {
			file, key = dir+"/model.safetensors", rest
			if _, ok := b.Built.Files[dir+"/config.json"]; !ok {
				b.JSON(dir+"/config.json", `{"component":`+strconv.Quote(dir)+`}`)
			}
		}
		m.expectTensor(file, key, t)
		switch g {
		case TensorParams:
			b.Layer(fmt.Sprintf("%s; dtype=%s; name=%q; shape=\"%s\"", mediatype.OllamaTensor, t.DType, t.Name, shapeText(t.Shape)), t.Data, "")
		case TensorData:
			b.Layer(mediatype.OllamaTensor, Safetensors([]SafeTensor{{"data", t.DType, t.Shape, t.Data}}, nil), t.Name)
		case TensorNamed:
			packed, meta := []SafeTensor{t}, map[string]string(nil)
			for i+1 < len(tensors) && strings.HasPrefix(tensors[i+1].Name, t.Name+".") {
				i++
				packed = append(packed, tensors[i])
				m.expectTensor(file, strings.TrimPrefix(tensors[i].Name, strings.TrimSuffix(t.Name, key)), tensors[i])
				meta = map[string]string{"quant_type": "nvfp4", "group_size": "16"}
				m.Metadata[file] = meta
			}
			b.Layer(mediatype.OllamaTensor, Safetensors(packed, meta), t.Name)
		}
	}
	if g == TensorParams {
		m.addFirstConfig(b)
	} else {
		b.JSON("config.json", `{"model_type":"qwen3","architectures":["Qwen3ForCausalLM"]}`)
		b.JSON("tokenizer.json", `{"version":"1.0"}`)
	}
	b.Done()
	m.Files["Modelfile"] = File{"Modelfile", []byte("# Modelfile made from the layers of an Ollama model.\nFROM .\n"), 0o644}
	return m
}

// addFirstConfig adds the layers of the first generation that are no tensors.
func (m *TensorModel) addFirstConfig(b *OllamaBuilder) {
	prefix := strings.TrimSuffix(mediatype.OllamaTensor, "tensor")
	for _, f := range []struct{ part, path, text string }{
		{"config; type=safetensors", "config.json", `{"model_type":"qwen3"}`},
		{"tokenizer", "tokenizer.json", `{"version":"1.0"}`},
		{"tokenizer.config", "tokenizer_config.json", `{"bos_token":"<s>"}`},
	} {
		b.Layer(prefix+f.part, []byte(f.text), "")
		m.Files[f.path] = File{f.path, []byte(f.text), 0o644}
	}
}

func (m *TensorModel) expectTensor(file, key string, t SafeTensor) {
	if m.Tensors[file] == nil {
		m.Tensors[file] = map[string]SafeTensor{}
	}
	t.Name = key
	m.Tensors[file][key] = t
}

func shapeText(shape []uint64) string {
	return strings.ReplaceAll(fmt.Sprint(shape), " ", ",")
}

// Check returns an error unless files are those of the model: every tensor with its bytes, the
// other files, and the data to restore every blob of a tensor.
func (m *TensorModel) Check(files map[string]File) error {
	for path, want := range m.Tensors {
		got, meta, err := ReadSafetensors(files[path].Data)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if len(got) != len(want) {
			return fmt.Errorf("%s: got %d tensors, want %d", path, len(got), len(want))
		}
		for name, w := range want {
			if g := got[name]; g.DType != w.DType || !slices.Equal(g.Shape, w.Shape) || !bytes.Equal(g.Data, w.Data) {
				return fmt.Errorf("%s: tensor %q: got %s %v, want %s %v, or other bytes", path, name, g.DType, g.Shape, w.DType, w.Shape)
			}
		}
		if diff := cmp.Diff(m.Metadata[path], meta); diff != "" {
			return fmt.Errorf("%s: metadata (-want +got):\n%s", path, diff)
		}
	}
	for path, want := range m.Files {
		if !bytes.Equal(files[path].Data, want.Data) {
			return fmt.Errorf("%s: got %.200q, want %.200q", path, files[path].Data, want.Data)
		}
	}
	for path := range files {
		_, tensors := m.Tensors[path]
		if _, ok := m.Files[path]; !ok && !tensors && !strings.HasPrefix(path, "ollama/headers.") {
			return fmt.Errorf("%s is there", path)
		}
	}
	blobs, err := RebuildBlobs(files)
	if err != nil {
		return err
	}
	var manifest OllamaManifest
	if err := json.Unmarshal(m.Manifest, &manifest); err != nil {
		return err
	}
	for i, l := range manifest.Layers {
		if p, ok := blobs[l.Digest]; mediatype.Base(l.MediaType) == mediatype.OllamaTensor && (!ok || !bytes.Equal(p, m.Blobs[l.Digest])) {
			return fmt.Errorf("layer %d: blob %s cannot be made again", i, l.Digest)
		}
	}
	return nil
}

// RebuildBlobs makes the blobs of tensor layers again from the files of a model.
func RebuildBlobs(files map[string]File) (map[digest.Digest][]byte, error) {
	type span struct {
		File         string
		Offset, Size int64
	}
	var index struct {
		Blobs []struct {
			Digest digest.Digest
			Size   int64
			Header *span
			Data   []span
		}
	}
	if err := json.Unmarshal(files["ollama/headers.json"].Data, &index); err != nil {
		return nil, fmt.Errorf("ollama/headers.json: %w", err)
	}
	blobs := map[digest.Digest][]byte{}
	for _, b := range index.Blobs {
		var p []byte
		if b.Header != nil {
			b.Data = append([]span{*b.Header}, b.Data...)
		}
		for _, s := range b.Data {
			f := files[s.File].Data
			if s.Offset < 0 || s.Size < 0 || s.Offset+s.Size > int64(len(f)) {
				return nil, fmt.Errorf("blob %s: %d bytes at %d of the %d of %q", b.Digest, s.Size, s.Offset, len(f), s.File)
			}
			p = append(p, f[s.Offset:s.Offset+s.Size]...)
		}
		if err := verify.Bytes(b.Digest, p); err != nil {
			return nil, err
		}
		blobs[b.Digest] = p
	}
	return blobs, nil
}

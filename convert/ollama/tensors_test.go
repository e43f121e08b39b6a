package ollama_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

const tensorType = prefix + "tensor"

func TestTensorGenerations(t *testing.T) {
	t.Parallel()
	plain := converttest.Tensors(20, 100)
	components := converttest.Tensors(6, 64)
	for i := range components {
		dir := []string{"text_encoder", "transformer", "vae"}[min(i/5, 2)]
		components[i].Name = dir + "/" + components[i].Name
	}
	odd := []converttest.SafeTensor{
		{Name: "empty", DType: "F32", Shape: []uint64{0, 7}, Data: []byte{}},
		{Name: "scalar", DType: "F64", Shape: []uint64{}, Data: make([]byte, 8)},
		{Name: "one byte", DType: "U8", Shape: []uint64{1}, Data: []byte{1}},
		{Name: "ünïcode <&>", DType: "BF16", Shape: []uint64{1}, Data: []byte{1, 2}},
		{Name: "tied", DType: "BF16", Shape: []uint64{1}, Data: []byte{1, 2}},
		{Name: "after an odd byte", DType: "F32", Shape: []uint64{2}, Data: []byte("12345678")},
	}
	for _, g := range converttest.Generations {
		for _, tt := range []struct {
			name    string
			tensors []converttest.SafeTensor
		}{{"quantised", plain}, {"components", components}, {"odd", odd}} {
			t.Run(string(g)+"/"+tt.name, func(t *testing.T) {
				t.Parallel()
				checkTensors(t, converttest.OllamaTensors(g, tt.tensors))
			})
		}
	}
}

// checkTensors parses m twice, reads all tensors back, and checks how many bytes of the blobs were
// read.
func checkTensors(t *testing.T, m *converttest.TensorModel) *convert.Model {
	t.Helper()
	a := converttest.NewArtifact(m.Built)
	model, err := parsers.Parse(context.Background(), a)
	if err != nil {
		t.Fatal(err)
	}
	files, err := converttest.Extract(model, m.Blobs)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Check(files); err != nil {
		t.Error(err)
	}
	for _, b := range model.Table.Blobs {
		if b.Archive != filetable.ArchiveFragments {
			continue
		}
		head := int64(0)
		if p := m.Blobs[b.Digest]; strings.HasPrefix(string(p[min(8, len(p)):]), "{") {
			head = 8 + int64(p[0]) + int64(p[1])<<8
		}
		if n := a.BytesRead(b.Digest); n > head+8 || a.ReadWhole(b.Digest) {
			t.Errorf("layer %d: %d bytes were read of a blob with a header of %d", b.Layer, n, head)
		}
	}
	again, err := parsers.Parse(context.Background(), converttest.NewArtifact(m.Built))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(encode(t, model), encode(t, again)) {
		t.Error("parsed again, it is another")
	}
	return model
}

// encode returns all parts of a model.
func encode(t *testing.T, m *convert.Model) []byte {
	t.Helper()
	im, err := image.Build(m)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Concat(im.Manifest, im.Config, im.Table)
}

// st returns a safetensors blob with the given JSON and data.
func st(header, data string) []byte {
	return converttest.SafetensorsWith([]byte(header), []byte(data))
}

// build builds a model from layers, and parses it.
func build(config string, add func(*converttest.OllamaBuilder)) (map[string]converttest.File, *convert.Model, error) {
	b := converttest.NewOllama("", config)
	add(b)
	built := b.Done()
	m, err := parsers.Parse(context.Background(), converttest.NewArtifact(built))
	if err != nil {
		return nil, nil, err
	}
	files, err := converttest.Extract(m, built.Blobs)
	return files, m, err
}

const f32 = `{"dtype":"F32","shape":[1],"data_offsets":[%d,%d]}`

// entries returns a header of tensors with four bytes each.
func entries(names ...string) string {
	var l []string
	for i, n := range names {
		l = append(l, fmt.Sprintf("%q:"+f32, n, 4*i, 4*i+4))
	}
	return "{" + strings.Join(l, ",") + "}"
}

// names returns the tensors of a file, as name=bytes, sorted, and its metadata.
func names(t *testing.T, f converttest.File) ([]string, map[string]string) {
	t.Helper()
	tensors, meta, err := converttest.ReadSafetensors(f.Data)
	if err != nil {
		t.Fatalf("%q: %v", f.Path, err)
	}
	var l []string
	for n, x := range tensors {
		l = append(l, n+"="+string(x.Data))
	}
	slices.Sort(l)
	return l, meta
}

// TestTensorFiles has the unusual cases of tensor blobs that are not errors.
func TestTensorFiles(t *testing.T) {
	t.Parallel()
	type files = map[string][]string
	for _, tt := range []struct {
		name, config string
		add          func(*converttest.OllamaBuilder)
		want         files
		metadata     map[string]string // of model.safetensors
	}{
		{"the specification's form: shape without quotes", "", func(b *converttest.OllamaBuilder) {
			b.Layer(tensorType+"; name=input; dtype=F32; shape=1,1,1", []byte("abcd"), "")
			b.Layer(tensorType+";name=output;dtype=i16;shape=2,1", []byte("efgh"), "")
		}, files{"model.safetensors": {"input=abcd", "output=efgh"}}, nil},
		{"parameters as mime.FormatMediaType writes them", "", func(b *converttest.OllamaBuilder) {
			b.Layer(tensorType+`; dtype=F32; name*=utf-8''%C3%BC%2Fx; shape="[1]"`, []byte("abcd"), "")
		}, files{"model.safetensors": {"ü/x=abcd"}}, nil},
		{"a name that is a path is a name", "", func(b *converttest.OllamaBuilder) {
			b.Layer(tensorType+`; name="../../x"; dtype=F32; shape=[1]`, []byte("abcd"), "")
		}, files{"model.safetensors": {"../../x=abcd"}}, nil},
		{"the header says two tensors, the manifest a third", "", func(b *converttest.OllamaBuilder) {
			b.Layer(tensorType, st(entries("a", "b"), "aaaabbbb"), "c")
		}, files{"model.safetensors": {"a=aaaa", "b=bbbb"}}, nil},
		{"the same blob twice", "", func(b *converttest.OllamaBuilder) {
			b.Layer(tensorType, st(entries("a", "b"), "aaaabbbb"), "a")
			b.Layer(tensorType, st(entries("a", "b"), "aaaabbbb"), "b")
		}, files{"model.safetensors": {"a=aaaa", "b=bbbb"}}, nil},
		{"the same bytes under two names", "", func(b *converttest.OllamaBuilder) {
			b.Layer(tensorType, st(entries("data"), "aaaa"), "vae/a")
			b.Layer(tensorType, st(entries("data"), "aaaa"), "vae/b")
			b.Layer(tensorType, st(entries("data"), "aaaa"), "vae/a")
			b.Layer(tensorType, st(entries("data"), "aaaa"), "a")
		}, files{"vae/model.safetensors": {"a=aaaa", "b=aaaa"}, "model.safetensors": {"a=aaaa"}}, nil},
		{"a draft by its prefix", `{"draft":{"tensor_prefix":"draft."}}`, func(b *converttest.OllamaBuilder) {
			b.Layer(tensorType, st(entries("a"), "aaaa"), "a")
			b.Layer(tensorType, st(entries("draft.a"), "dddd"), "draft.a")
		}, files{"model.safetensors": {"a=aaaa"}, "draft/model.safetensors": {"draft.a=dddd"}}, nil},
		{"a blob that is in two files", `{"draft":{"tensor_prefix":"draft."}}`, func(b *converttest.OllamaBuilder) {
			b.Layer(tensorType, st(entries("a", "draft.a", "b", "draft.b"), "aaaaddddbbbbeeee"), "x")
		}, files{"model.safetensors": {"a=aaaa", "b=bbbb"}, "draft/model.safetensors": {"draft.a=dddd", "draft.b=eeee"}}, nil},
		{"a slash is a component only beside its JSON", "", func(b *converttest.OllamaBuilder) {
			b.JSON("vae/config.json", "{}")
			b.Layer(tensorType, st(entries("vae/a", "bert/encoder/b"), "aaaabbbb"), "")
		}, files{"vae/model.safetensors": {"a=aaaa"}, "model.safetensors": {"bert/encoder/b=bbbb"}}, nil},
		{"data is a name in the manifest", "", func(b *converttest.OllamaBuilder) {
			b.Layer(tensorType, st(entries("data"), "aaaa"), "data")
		}, files{"model.safetensors": {"data=aaaa"}}, nil},
		{"a config for safetensors, as the text of the specification spells it", "", func(b *converttest.OllamaBuilder) {
			b.Layer(prefix+"config; type=safetensor", []byte("{}"), "")
			b.Layer(tensorType+"; name=a; dtype=F32; shape=1", []byte("aaaa"), "")
		}, files{"model.safetensors": {"a=aaaa"}}, nil},
		{"an unknown quant_type is kept, and said of the file if none says otherwise", "", func(b *converttest.OllamaBuilder) {
			b.Layer(tensorType, st(`{"__metadata__":{"quant_type":"martian9"},`+entries("a", "a.scale")[1:], "aaaassss"), "a")
			b.Layer(tensorType, st(entries("norm"), "nnnn"), "norm")
		}, files{"model.safetensors": {"a.scale=ssss", "a=aaaa", "norm=nnnn"}}, map[string]string{"quant_type": "martian9"}},
		{"blobs that disagree say it of their tensors, but not of companions", "", func(b *converttest.OllamaBuilder) {
			b.Layer(tensorType, st(`{"__metadata__":{"quant_type":"int4","format":"mlx"},`+entries("a", "a.scale", "a.bias")[1:], "aaaassssbbbb"), "a")
			b.Layer(tensorType, st(`{"__metadata__":{"quant_type":"int8","format":"mlx","c.quant_type":"nvfp4"},`+entries("b", "c")[1:], "bbbbcccc"), "x")
		}, files{"model.safetensors": {"a.bias=bbbb", "a.scale=ssss", "a=aaaa", "b=bbbb", "c=cccc"}},
			map[string]string{"format": "mlx", "a.quant_type": "int4", "b.quant_type": "int8", "c.quant_type": "nvfp4"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, _, err := build(tt.config, tt.add)
			if err != nil {
				t.Fatal(err)
			}
			for path, want := range tt.want {
				l, meta := names(t, got[path])
				slices.Sort(want)
				if diff := cmp.Diff(want, l); diff != "" {
					t.Errorf("%s (-want +got):\n%s", path, diff)
				}
				if diff := cmp.Diff(tt.metadata, meta); path == "model.safetensors" && diff != "" {
					t.Errorf("metadata (-want +got):\n%s", diff)
				}
			}
			for path := range got {
				if _, ok := tt.want[path]; !ok && strings.HasSuffix(path, ".safetensors") {
					t.Errorf("%s is there", path)
				}
			}
			if _, err := converttest.RebuildBlobs(got); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestTensorRefuses has the cases of tensor layers that are errors. All name the layer.
func TestTensorRefuses(t *testing.T) {
	t.Parallel()
	bare := func(params, data string) func(*converttest.OllamaBuilder) {
		return func(b *converttest.OllamaBuilder) { b.Layer(tensorType+params, []byte(data), "") }
	}
	blob := func(header, data string) func(*converttest.OllamaBuilder) {
		return func(b *converttest.OllamaBuilder) { b.Layer(tensorType, st(header, data), "a") }
	}
	raw := func(p string) func(*converttest.OllamaBuilder) {
		return func(b *converttest.OllamaBuilder) { b.Layer(tensorType, []byte(p), "a") }
	}
	two := func(first, second string) func(*converttest.OllamaBuilder) {
		return func(b *converttest.OllamaBuilder) {
			b.Layer(tensorType, st(entries(first), "aaaa"), "x/a")
			b.Layer(tensorType, st(entries(second), "bbbb"), "x/a")
		}
	}
	for _, tt := range []struct {
		name string
		add  func(*converttest.OllamaBuilder)
		text string
	}{
		{"a shape of more than 2^64", bare("; name=x; dtype=F32; shape=[4294967296,4294967296]", "abcd"), "layer 0"},
		{"a shape in floating point", bare("; name=x; dtype=F32; shape=[1e9,1e9]", "abcd"), "shape"},
		{"a shape without its end", bare("; name=x; dtype=F32; shape=[1", "abcd"), "shape"},
		{"a shape that is negative", bare("; name=x; dtype=F32; shape=-1", "abcd"), "shape"},
		{"a shape with a million dimensions", bare("; name=x; dtype=F32; shape="+strings.Repeat("1,", 8000)+"1", "abcd"), "shape"},
		{"a shape of another size", bare("; name=x; dtype=F32; shape=2", "abcd"), "layer 0"},
		{"no shape", bare("; name=x; dtype=F32", "abcd"), "shape"},
		{"no type", bare("; name=x; shape=1", "abcd"), "dtype"},
		{"no name", bare("; dtype=F32; shape=1", "abcd"), "without name"},
		{"the name of metadata", bare("; name=__metadata__; dtype=F32; shape=1", "abcd"), "__metadata__"},
		{"a parameter of a megabyte", bare("; name="+strings.Repeat("x", 1<<20)+"; dtype=F32; shape=1", "abcd"), "bytes"},
		{"a name of five kilobytes", bare("; name="+strings.Repeat("x", 5000)+"; dtype=F32; shape=1", "abcd"), "bytes"},
		{"a name twice", bare("; name=x; name*=utf-8''y; dtype=F32; shape=1", "abcd"), "twice"},
		{"quotes that are not closed", bare(`; name="x; dtype=F32; shape=1`, "abcd"), "quotes"},
		{"something after quotes", bare(`; name="x"y; dtype=F32; shape=1`, "abcd"), "quotes"},
		{"a parameter without value", bare("; [name=x]; dtype; shape=1", "abcd"), "no value"},
		{"another charset", bare("; name*=latin1''%e9; dtype=F32; shape=1", "abcd"), "UTF-8"},
		{"a name that is not UTF-8", bare("; name*=utf-8''%ff; dtype=F32; shape=1", "abcd"), "UTF-8"},

		{"a dtype that safetensors does not define, in the media type", bare("; name=x; dtype=Q4_K; shape=256", strings.Repeat("x", 144)), "layer 0"},
		{"a dtype that safetensors does not define, in the header", blob(`{"a":{"dtype":"Q3_X","shape":[1000],"data_offsets":[0,4]}}`, "aaaa"), "dtype"},

		{"too short", raw("abc"), "layer 0"},
		{"a header beyond the blob", raw("\x10\x00\x00\x00\x00\x00\x00\x00{}"), "layer 0"},
		{"a header of 100,000,001 bytes", raw("\x01\xe1\xf5\x05\x00\x00\x00\x00{}"), "layer 0"},
		{"a header of 2^64-1 bytes", raw("\xff\xff\xff\xff\xff\xff\xff\xff{}"), "layer 0"},
		{"GGUF in the place of safetensors", raw("GGUF\x03\x00\x00\x00\x00\x00\x00\x00"), "layer 0"},
		{"no JSON", blob("abc", ""), "layer 0"},
		{"a key twice", blob(`{"a":`+fmt.Sprintf(f32, 0, 4)+`,"a":`+fmt.Sprintf(f32, 0, 4)+`}`, "aaaa"), "layer 0"},
		{"an offset that is a string", blob(`{"a":{"dtype":"F32","shape":[1],"data_offsets":["0",4]}}`, "aaaa"), "layer 0"},
		{"an offset in floating point", blob(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0.0,4]}}`, "aaaa"), "layer 0"},
		{"an offset that is negative", blob(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}}`, "aaaa"), "layer 0"},
		{"a shape with -1", blob(`{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}`, "aaaa"), "layer 0"},
		{"a shape that is another size", blob(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, "aaaa"), "layer 0"},
		{"an empty name", blob(entries(""), "aaaa"), "without name"},
		{"a name of a megabyte", blob(entries(strings.Repeat("x", 1<<20)), "aaaa"), "layer 0"},
		{"metadata that is no string", blob(`{"__metadata__":{"x":1},`+entries("a")[1:], "aaaa"), "layer 0"},
		{"a gap", blob(`{"a":`+fmt.Sprintf(f32, 4, 8)+`}`, "aaaabbbb"), "layer 0"},
		{"an overlap", blob(`{"a":`+fmt.Sprintf(f32, 0, 4)+`,"b":`+fmt.Sprintf(f32, 2, 6)+`}`, "aaaabb"), "layer 0"},
		{"data after the last tensor", blob(entries("a"), "aaaabbbb"), "layer 0"},
		{"data that is missing", blob(entries("a"), "aa"), "layer 0"},
		{"no tensors at all", blob("{}", ""), "without tensors"},
		{"data beside a name", blob(entries("data", "a"), "aaaabbbb"), `"data"`},

		{"a tensor in two layers", two("a", "a"), "layer 1"},
		{"a tensor in two layers, named by the manifest", two("data", "data"), "layer 1"},
		{"a component that leaves the model", func(b *converttest.OllamaBuilder) {
			b.Layer(tensorType, st(entries("data"), "aaaa"), "../x")
		}, "leaves the model"},
		{"a component without name", func(b *converttest.OllamaBuilder) {
			b.Layer(tensorType, st(entries("data"), "aaaa"), "/etc/passwd")
		}, "absolute"},
		{"a name of data that is empty", func(b *converttest.OllamaBuilder) {
			b.Layer(tensorType, st(entries("data"), "aaaa"), "vae/")
		}, "without name"},
		{"no name for data", func(b *converttest.OllamaBuilder) {
			b.Layer(tensorType, st(entries("data"), "aaaa"), "")
		}, "without name"},
		{"a hundred components", func(b *converttest.OllamaBuilder) {
			for i := range 100 {
				b.Layer(tensorType, st(entries("data"), "aaaa"), fmt.Sprintf("c%d/a", i))
			}
		}, "components"},
		{"the same blob with and without header", func(b *converttest.OllamaBuilder) {
			p := st(entries("a"), "aaaa")
			b.Layer(tensorType, p, "")
			b.Layer(fmt.Sprintf("%s; name=x; dtype=U8; shape=%d", tensorType, len(p)), p, "")
		}, "layer 1"},
		{"the same blob as a tensor and a JSON file", func(b *converttest.OllamaBuilder) {
			p := st(entries("a"), "aaaa")
			b.Layer(tensorType, p, "")
			b.Layer(prefix+"json", p, "a.json")
		}, "layer 1"},
		{"a JSON file in the place of the tensors", func(b *converttest.OllamaBuilder) {
			b.Layer(tensorType, st(entries("a"), "aaaa"), "")
			b.JSON("model.safetensors", "{}")
		}, "model.safetensors"},
		{"a JSON file that leaves the model", func(b *converttest.OllamaBuilder) {
			b.Layer(tensorType, st(entries("a"), "aaaa"), "")
			b.JSON("../config.json", "{}")
		}, "layer 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, _, err := build("", tt.add)
			if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want errdefs.ErrInvalidArgument with %q", err, tt.text)
			}
		})
	}
}

func TestHeaderSizeLimit(t *testing.T) {
	t.Parallel()
	_, _, err := build("", func(b *converttest.OllamaBuilder) {
		for i := range 13 {
			name := fmt.Sprintf("t%d", i)
			b.Layer(tensorType, st(entries(name)+strings.Repeat(" ", 2<<20), "aaaa"), name)
		}
	})
	if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), "header") {
		t.Errorf("got %v, want errdefs.ErrInvalidArgument", err)
	}
}

// TestMetadataLimit has a header named by a thousand layers, so that its metadata would be read
// a thousand times.
func TestMetadataLimit(t *testing.T) {
	t.Parallel()
	var meta []string
	for i := range 2000 {
		meta = append(meta, fmt.Sprintf(`"k%d":""`, i))
	}
	p := st(`{"__metadata__":{`+strings.Join(meta, ",")+`},`+entries("data")[1:], "aaaa")
	_, _, err := build("", func(b *converttest.OllamaBuilder) {
		for i := range 1000 {
			b.Layer(tensorType, p, fmt.Sprintf("t%d", i))
		}
	})
	if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), "metadata") {
		t.Errorf("got %v, want errdefs.ErrInvalidArgument", err)
	}
}

// TestManyRuns has tensors of two files by turns in one blob, so that each is added by itself: work for each of them
// does not grow with their number. The memory for their header is reserved.
func TestManyRuns(t *testing.T) {
	t.Parallel()
	const tensors = 30_000
	var l []string
	for i := range tensors {
		l = append(l, fmt.Sprintf(`"%s%d":{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}`, []string{"a/", "b"}[i%2], i, i, i+1))
	}
	header := `{"__metadata__":{"k":""},` + strings.Join(l, ",") + "}"
	b := converttest.NewOllama("", "")
	b.Layer(tensorType, st(header, strings.Repeat("a", tensors)), "weights")
	b.Layer(prefix+"json", []byte("{}"), "a/config.json")
	var room int64
	ctx := convert.WithRoom(t.Context(), func(_ context.Context, n int64) error {
		room += n
		return nil
	})
	m, err := parsers.Parse(ctx, converttest.NewArtifact(b.Done()))
	if err != nil {
		t.Fatal(err)
	}
	weights := slices.DeleteFunc(m.Table.Files, func(f filetable.File) bool { return !strings.HasSuffix(f.Path, ".safetensors") })
	if len(weights) != 2 {
		t.Errorf("files of tensors: %v, want two", weights)
	}
	if room < 10*int64(len(header)) {
		t.Errorf("%d bytes of memory are reserved for a header of %d", room, len(header))
	}
}

func TestTensorModelImageHasFewLayers(t *testing.T) {
	t.Parallel()
	m := converttest.OllamaTensors(converttest.TensorNamed, converttest.Tensors(1200, 64))
	model := checkTensors(t, m)
	im, err := image.Build(model)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := convert.ParseManifest(im.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(manifest.Layers); got != 33 {
		t.Errorf("got %d layers, want 32 and the table", got)
	}
	table, err := filetable.Decode(im.Table)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(table.Blobs), 1200+2; got != want {
		t.Errorf("table: got %d blobs, want %d", got, want)
	}
}

func TestTensorModelConfig(t *testing.T) {
	t.Parallel()
	add := func(b *converttest.OllamaBuilder) {
		b.Layer(tensorType, st(`{"__metadata__":{"quant_type":"int4"},"a":{"dtype":"U32","shape":[500],"data_offsets":[0,2000]},"a.scale":{"dtype":"U8","shape":[4],"data_offsets":[2000,2004]}}`,
			strings.Repeat("x", 2004)), "a")
		b.Layer(tensorType, st(`{"draft.a":{"dtype":"F32","shape":[1000],"data_offsets":[0,4000]}}`, strings.Repeat("x", 4000)), "draft.a")
	}
	for config, want := range map[string]convert.ModelConfig{
		`{"draft":{"tensor_prefix":"draft."}}`: {Format: "safetensors", ParamSize: "4K", Quantization: "int4"},
		`{"draft":{"tensor_prefix":"draft."},"model_format":"mlx","model_type":"27.3B","file_type":"nvfp4"}`: {Format: "mlx", ParamSize: "27.3B", Quantization: "nvfp4"},
	} {
		_, m, err := build(config, add)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, m.Config.Config); diff != "" {
			t.Errorf("%s (-want +got):\n%s", config, diff)
		}
	}
}

func TestTensorsWithOtherLayers(t *testing.T) {
	t.Parallel()
	files, m, err := build(`{"model_format":"safetensors"}`, func(b *converttest.OllamaBuilder) {
		b.Layer(tensorType, st(entries("a"), "aaaa"), "a")
		b.JSON("config.json", "{}")
		b.Layer(prefix+"template; [name=x]", []byte("{{ .Prompt }}"), "")
		b.Layer(prefix+"license", []byte("MIT"), "")
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(files["Modelfile"].Data), header+"FROM .\nTEMPLATE {{ .Prompt }}\nLICENSE MIT\n"; got != want {
		t.Errorf("Modelfile: got %q, want %q", got, want)
	}
	if m.Config.Config.Format != "safetensors" {
		t.Errorf("format: got %q", m.Config.Config.Format)
	}
	if diff := cmp.Diff([]digest.Digest{m.Layers[0].Desc.Digest}, m.Config.ModelFS.DiffIDs[:1]); diff != "" {
		t.Errorf("diffIDs (-want +got):\n%s", diff)
	}
}

// Tensors with a config for GGUF are not assembled: the dimensions of their shapes are in reverse
// order.
func TestTensorsWithGGUFConfigAreRefused(t *testing.T) {
	t.Parallel()
	for _, dtype := range []string{"F32", "Q4_K"} {
		_, _, err := build("", func(b *converttest.OllamaBuilder) {
			b.Layer(prefix+"config; type=gguf", []byte("{}"), "")
			b.Layer(tensorType+"; name=a; dtype="+dtype+"; shape=1", []byte("aaaa"), "")
		})
		if !errors.Is(err, errdefs.ErrNotImplemented) || !strings.Contains(err.Error(), `"gguf"`) {
			t.Errorf("%s: got %v", dtype, err)
		}
	}
}

package gguf

import (
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/google/go-cmp/cmp"
)

func TestDescribe(t *testing.T) {
	t.Parallel()
	base := func(change func(*convert.Config)) convert.Config {
		c := convert.Config{
			Descriptor: convert.ModelDescriptor{
				Vendor: "Example", Family: "llama", Name: "Small", Version: "v0.1",
				SourceURL: "https://models.example/small", Licenses: []string{"Apache-2.0"},
			},
			Config: convert.ModelConfig{
				Architecture: "llama", Format: "gguf", ParamSize: "8.3K", Quantization: "Q8_0",
				Capabilities: &convert.Capabilities{Languages: []string{"en", "de"}},
			},
		}
		if change != nil {
			change(&c)
		}
		return c
	}
	header := func(change func(*Header)) *Header {
		h := small()
		change(h)
		return h
	}
	part := func(no uint64, params uint64) *Header {
		return &Header{SplitNo: no, SplitCount: 3, Parameters: params}
	}
	for _, tt := range []struct {
		name  string
		files []*Header
		want  convert.Config
	}{
		{"none", nil, convert.Config{}},
		{"one", []*Header{small()}, base(nil)},
		{"a projector and an adapter beside it", []*Header{{Type: "mmproj", Architecture: "clip"}, small(), {Type: "adapter"}}, base(nil)},
		{"a projector alone", []*Header{{Type: "mmproj", Architecture: "clip", FileType: "F16"}}, convert.Config{
			Descriptor: convert.ModelDescriptor{Family: "clip"},
			Config:     convert.ModelConfig{Architecture: "clip", Format: "gguf", Precision: "float16"},
		}},
		{"float32", []*Header{header(func(h *Header) { h.FileType = "F32" })},
			base(func(c *convert.Config) { c.Config.Precision, c.Config.Quantization = "float32", "" })},
		{"bfloat16 by its tensors", []*Header{header(func(h *Header) { h.FileType, h.Types = "", map[string]uint64{"BF16": 2, "F32": 1} })},
			base(func(c *convert.Config) { c.Config.Precision, c.Config.Quantization = "bfloat16", "" })},
		{"MXFP4 by its tensors", []*Header{header(func(h *Header) { h.FileType, h.Types = "", map[string]uint64{"MXFP4": 2, "F32": 1} })},
			base(func(c *convert.Config) { c.Config.Quantization = "MXFP4" })},
		{"no tensors", []*Header{header(func(h *Header) { h.FileType, h.Types, h.Parameters = "", nil, 0 })},
			base(func(c *convert.Config) { c.Config.ParamSize, c.Config.Quantization = "", "" })},
		{"number of parameters not known, but written", []*Header{header(func(h *Header) { h.Parameters, h.SizeLabel = 0, "7.06b" })},
			base(func(c *convert.Config) { c.Config.ParamSize = "7.1B" })},
		{"number of parameters not known, written as experts", []*Header{header(func(h *Header) { h.Parameters, h.SizeLabel = 0, "8x7B" })},
			base(func(c *convert.Config) { c.Config.ParamSize = "" })},
		{"fewer parameters than the form has a unit for", []*Header{header(func(h *Header) { h.Parameters = 183 })},
			base(func(c *convert.Config) { c.Config.ParamSize = "" })},
		{"1,235,814,400 parameters", []*Header{header(func(h *Header) { h.Parameters = 1_235_814_400 })},
			base(func(c *convert.Config) { c.Config.ParamSize = "1.2B" })},
		{"licences, languages and addresses that are none", []*Header{header(func(h *Header) {
			h.License, h.RepoURL, h.URL = "llama3.1", "javascript:alert(1)", "https://user:secret@models.example/"
			h.Languages, h.Datasets = []string{"english", "EN", "fr", "fr"}, []string{"a/b", "http://data.example/x"}
			h.SourceRepo, h.Author = "https://source.example/", "A. Uthor"
		})}, base(func(c *convert.Config) {
			c.Descriptor.Licenses, c.Descriptor.SourceURL = nil, "https://source.example/"
			c.Descriptor.DatasetsURL, c.Descriptor.Authors = []string{"http://data.example/x"}, []string{"A. Uthor"}
			c.Config.Capabilities.Languages = []string{"fr"}
		})},
		{"three parts in any order", []*Header{part(2, 500), header(func(h *Header) { h.SplitCount = 3; h.Parameters = 10_000 }), part(1, 700)},
			base(func(c *convert.Config) { c.Config.ParamSize = "11.2K" })},
		{"a part is missing", []*Header{header(func(h *Header) { h.SplitCount = 3 }), part(1, 700)},
			base(func(c *convert.Config) { c.Config.ParamSize = "" })},
		{"a part is there twice", []*Header{header(func(h *Header) { h.SplitCount = 3 }), part(1, 700), part(1, 700)},
			base(func(c *convert.Config) { c.Config.ParamSize = "" })},
		{"two quantisations", []*Header{small(), header(func(h *Header) { h.FileType = "Q4_K_M" })},
			base(func(c *convert.Config) { c.Config.Quantization = "" })},
		{"two models", []*Header{small(), {Name: "Other", Architecture: "qwen3", License: "MIT", Parameters: 5_000_000}},
			convert.Config{Config: convert.ModelConfig{Format: "gguf"}}},
	} {
		if diff := cmp.Diff(tt.want, Describe(tt.files...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestContextLength(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		files []*Header
		want  uint64
	}{
		{"none", nil, 0},
		{"one", []*Header{small()}, 2048},
		{"with a projector", []*Header{small(), {Type: "mmproj", ContextLength: 7}}, 2048},
		{"parts", []*Header{{SplitNo: 1, SplitCount: 2}, {SplitCount: 2, ContextLength: 9}}, 9},
		{"two models that agree", []*Header{small(), small()}, 2048},
		{"two models that do not", []*Header{small(), {ContextLength: 1}}, 0},
	} {
		if got := ContextLength(tt.files...); got != tt.want {
			t.Errorf("%s: got %d, want %d", tt.name, got, tt.want)
		}
	}
}

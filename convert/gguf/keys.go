package gguf

import (
	"bytes"
	"slices"
	"strings"
)

// A key is the destination of the value of a metadata key. One of its fields is set.
type key struct {
	name   string
	text   func(*Header) *string
	list   func(*Header) *[]string
	number func(*Header) *uint64
	flag   func(*Header) *bool // set if the value is a string that is not empty
	set    func(*decoder, uint64) error
}

// keys are the metadata keys that are kept, besides those that start with an architecture.
var keys = index([]key{
	{name: "general.type", text: func(h *Header) *string { return &h.Type }},
	{name: "general.architecture", text: func(h *Header) *string { return &h.Architecture }},
	{name: "general.name", text: func(h *Header) *string { return &h.Name }},
	{name: "general.basename", text: func(h *Header) *string { return &h.Basename }},
	{name: "general.finetune", text: func(h *Header) *string { return &h.Finetune }},
	{name: "general.version", text: func(h *Header) *string { return &h.Revision }},
	{name: "general.size_label", text: func(h *Header) *string { return &h.SizeLabel }},
	{name: "general.author", text: func(h *Header) *string { return &h.Author }},
	{name: "general.organization", text: func(h *Header) *string { return &h.Organization }},
	{name: "general.quantized_by", text: func(h *Header) *string { return &h.QuantizedBy }},
	{name: "general.license", text: func(h *Header) *string { return &h.License }},
	{name: "general.license.name", text: func(h *Header) *string { return &h.LicenseName }},
	{name: "general.license.link", text: func(h *Header) *string { return &h.LicenseLink }},
	{name: "general.description", text: func(h *Header) *string { return &h.Description }},
	{name: "general.url", text: func(h *Header) *string { return &h.URL }},
	{name: "general.repo_url", text: func(h *Header) *string { return &h.RepoURL }},
	{name: "general.source.url", text: func(h *Header) *string { return &h.SourceURL }},
	{name: "general.source.repo_url", text: func(h *Header) *string { return &h.SourceRepo }},
	{name: "general.tags", list: func(h *Header) *[]string { return &h.Tags }},
	{name: "general.languages", list: func(h *Header) *[]string { return &h.Languages }},
	{name: "general.datasets", list: func(h *Header) *[]string { return &h.Datasets }},
	{name: "general.quantization_version", number: func(h *Header) *uint64 { return &h.QuantizationVersion }},
	{name: "general.file_type", set: (*decoder).setFileType},
	{name: "general.alignment", set: (*decoder).setAlignment},
	{name: "split.no", number: func(h *Header) *uint64 { return &h.SplitNo }},
	{name: "split.count", number: func(h *Header) *uint64 { return &h.SplitCount }},
	{name: "split.tensors.count", number: func(h *Header) *uint64 { return &h.SplitTensors }},
	{name: "tokenizer.chat_template", flag: func(h *Header) *bool { return &h.ChatTemplate }},
})

// archKeys are the suffixes of keys that start with the architecture of the model, which may follow
// only after them.
var archKeys = []key{
	{name: ".context_length", number: func(h *Header) *uint64 { return &h.ContextLength }},
	{name: ".embedding_length", number: func(h *Header) *uint64 { return &h.EmbeddingLength }},
	{name: ".block_count", number: func(h *Header) *uint64 { return &h.BlockCount }},
	{name: ".expert_count", number: func(h *Header) *uint64 { return &h.ExpertCount }},
}

func index(list []key) map[string]key {
	m := make(map[string]key, len(list))
	for _, k := range list {
		m[k.name] = k
	}
	return m
}

// findKey returns the destination of the value of a key; the zero key if it is not kept.
func (d *decoder) findKey(name []byte) key {
	k, ok := keys[string(name)]
	if !ok && slices.ContainsFunc(archKeys, func(a key) bool { return bytes.HasSuffix(name, []byte(a.name)) }) {
		if len(name) > maxArchKey || len(d.arch) == maxArch {
			return key{}
		}
		s := string(name)
		k = key{name: s, set: func(d *decoder, v uint64) error {
			d.arch[s] = v
			return nil
		}}
	}
	if d.seen[k.name] {
		return key{}
	}
	return k
}

// resolveArch keeps the numbers that belong to the architecture of the model.
func (d *decoder) resolveArch() {
	for _, k := range archKeys {
		*k.number(d.h) = d.arch[d.h.Architecture+k.name]
	}
}

// clean returns a text of the file in the form in which it is kept, and whether it can be kept.
func (d *decoder) clean(p []byte) (string, bool) {
	if len(p) > d.room || !validText(p) {
		return "", false
	}
	d.room -= len(p)
	return strings.TrimSpace(string(p)), true
}

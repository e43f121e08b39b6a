package gguf

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// A key is the destination of the value of a metadata key. One of its fields is set.
type key struct {
	name   string
	text   func(*Header) *string
	list   func(*Header) *[]string
	number func(*Header) *uint64
	set    func(*decoder, uint64) error
}

// keys are the metadata keys that are kept, besides the context length.
var keys = index([]key{
	{name: "general.type", text: func(h *Header) *string { return &h.Type }},
	{name: "general.architecture", text: func(h *Header) *string { return &h.Architecture }},
	{name: "general.name", text: func(h *Header) *string { return &h.Name }},
	{name: "general.version", text: func(h *Header) *string { return &h.Revision }},
	{name: "general.size_label", text: func(h *Header) *string { return &h.SizeLabel }},
	{name: "general.author", text: func(h *Header) *string { return &h.Author }},
	{name: "general.organization", text: func(h *Header) *string { return &h.Organization }},
	{name: "general.license", text: func(h *Header) *string { return &h.License }},
	{name: "general.description", text: func(h *Header) *string { return &h.Description }},
	{name: "general.url", text: func(h *Header) *string { return &h.URL }},
	{name: "general.repo_url", text: func(h *Header) *string { return &h.RepoURL }},
	{name: "general.source.repo_url", text: func(h *Header) *string { return &h.SourceRepo }},
	{name: "general.languages", list: func(h *Header) *[]string { return &h.Languages }},
	{name: "general.datasets", list: func(h *Header) *[]string { return &h.Datasets }},
	{name: "general.file_type", set: (*decoder).setFileType},
	{name: "general.alignment", set: (*decoder).setAlignment},
	{name: "split.no", number: func(h *Header) *uint64 { return &h.SplitNo }},
	{name: "split.count", number: func(h *Header) *uint64 { return &h.SplitCount }},
})

// contextKey is the suffix of the key with the context length. Before it is the architecture of the
// model, which may follow only after this key.
const contextKey = ".context_length"

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
	if !ok && bytes.HasSuffix(name, []byte(contextKey)) {
		if len(name) > maxArchKey || len(d.contexts) == maxArch {
			return key{}
		}
		s := string(name)
		k = key{name: s, set: func(d *decoder, v uint64) error {
			d.contexts[s] = v
			return nil
		}}
	}
	if d.seen[k.name] {
		return key{}
	}
	return k
}

// clean returns a text of the file in the form in which it is kept, and whether it can be kept.
func (d *decoder) clean(p []byte) (string, bool) {
	if len(p) > d.room || bytes.IndexByte(p, 0) >= 0 || !utf8.Valid(p) {
		return "", false
	}
	d.room -= len(p)
	return strings.TrimSpace(string(p)), true
}

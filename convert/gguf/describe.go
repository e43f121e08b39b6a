package gguf

import (
	"cmp"
	"maps"
	"net/url"
	"regexp"
	"slices"

	"github.com/ballast-dev/ballast/convert"
)

// Describe returns the facts about a model from the headers of its files, in ModelPack's terms.
// Files that are parts of one model are combined. If there are several models, for example one in
// two quantisations, only the facts that they have in common are returned. Adapters, projectors and
// vocabularies are left out if there is a model beside them.
func Describe(files ...*Header) convert.Config {
	var all []convert.Config
	for _, m := range group(files) {
		all = append(all, m.describe())
	}
	if len(all) == 0 {
		return convert.Config{}
	}
	return common(all)
}

// ContextLength returns the context length of a model in tokens, from the headers of its files;
// zero if they do not have it, or have different ones.
func ContextLength(files ...*Header) uint64 {
	var n uint64
	for i, m := range group(files) {
		if i > 0 && m.first().ContextLength != n {
			return 0
		}
		n = m.first().ContextLength
	}
	return n
}

// A model is the headers of the files of one model.
type model []*Header

// group returns the models of files.
func group(files []*Header) []model {
	var models, others []model
	split := map[uint64]int{} // index in models by the number of files
	for _, h := range files {
		switch at, ok := split[h.SplitCount]; {
		case h.Type != "" && h.Type != "model":
			others = append(others, model{h})
		case ok:
			models[at] = append(models[at], h)
		default:
			if h.SplitCount > 1 {
				split[h.SplitCount] = len(models)
			}
			models = append(models, model{h})
		}
	}
	if len(models) == 0 {
		return others
	}
	return models
}

// first returns the header with the metadata: the other parts often have none.
func (m model) first() *Header {
	for _, h := range m {
		if h.SplitNo == 0 {
			return h
		}
	}
	return m[0]
}

// parameters returns the number of parameters, zero if it is unknown or parts are missing.
func (m model) parameters() uint64 {
	var sum uint64
	seen := map[uint64]bool{}
	for _, h := range m {
		if h.Parameters == 0 || seen[h.SplitNo] || sum+h.Parameters < sum {
			return 0
		}
		seen[h.SplitNo] = true
		sum += h.Parameters
	}
	if n := m[0].SplitCount; n > 1 && uint64(len(m)) != n {
		return 0
	}
	return sum
}

func (m model) describe() convert.Config {
	h := m.first()
	c := convert.Config{
		Descriptor: convert.ModelDescriptor{
			Vendor:      h.Organization,
			Family:      h.Architecture,
			Name:        h.Name,
			Version:     h.Revision,
			Description: h.Description,
			DocURL:      webURL(h.URL),
			SourceURL:   cmp.Or(webURL(h.RepoURL), webURL(h.SourceRepo)),
		},
		Config: convert.ModelConfig{
			Architecture: h.Architecture,
			Format:       "gguf",
			ParamSize:    cmp.Or(convert.ParamCount(m.parameters()), convert.ParamSize(h.SizeLabel)),
		},
	}
	if h.Author != "" {
		c.Descriptor.Authors = []string{h.Author}
	}
	if l := convert.SPDX(h.License); l != "" {
		c.Descriptor.Licenses = []string{l}
	}
	for _, d := range h.Datasets {
		if u := webURL(d); u != "" {
			c.Descriptor.DatasetsURL = append(c.Descriptor.DatasetsURL, u)
		}
	}
	c.Config.Precision, c.Config.Quantization = h.storage()
	if langs := languages(h.Languages); len(langs) > 0 {
		c.Config.Capabilities = &convert.Capabilities{Languages: langs}
	}
	return c
}

// storage returns the precision of a model that is not quantised, or otherwise the name of the
// quantisation. If the file does not have it, it is that of most bytes.
func (h *Header) storage() (precision, quantization string) {
	name := h.FileType
	if name == "" && len(h.Types) > 0 {
		name = slices.SortedFunc(maps.Keys(h.Types), func(x, y string) int {
			return cmp.Or(cmp.Compare(h.Types[y], h.Types[x]), cmp.Compare(x, y))
		})[0]
	}
	if p, ok := precisions[name]; ok {
		return p, ""
	}
	return "", name
}

var language = regexp.MustCompile(`^[a-z]{2}$`)

// languages returns the codes that ModelPack allows, without duplicates.
func languages(list []string) []string {
	var out []string
	seen := map[string]bool{}
	for _, s := range list {
		if language.MatchString(s) && !seen[s] {
			out = append(out, s)
			seen[s] = true
		}
	}
	return out
}

// webURL returns s if it is the address of a page, otherwise "".
func webURL(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http" {
		return ""
	}
	return s
}

// common returns the facts that all configs have.
func common(all []convert.Config) convert.Config {
	c := all[0]
	for _, o := range all[1:] {
		for _, f := range []struct{ have, other *string }{
			{&c.Descriptor.Vendor, &o.Descriptor.Vendor},
			{&c.Descriptor.Family, &o.Descriptor.Family},
			{&c.Descriptor.Name, &o.Descriptor.Name},
			{&c.Descriptor.Version, &o.Descriptor.Version},
			{&c.Descriptor.Description, &o.Descriptor.Description},
			{&c.Descriptor.DocURL, &o.Descriptor.DocURL},
			{&c.Descriptor.SourceURL, &o.Descriptor.SourceURL},
			{&c.Config.Architecture, &o.Config.Architecture},
			{&c.Config.ParamSize, &o.Config.ParamSize},
			{&c.Config.Precision, &o.Config.Precision},
			{&c.Config.Quantization, &o.Config.Quantization},
		} {
			if *f.have != *f.other {
				*f.have = ""
			}
		}
		for _, f := range []struct{ have, other *[]string }{
			{&c.Descriptor.Authors, &o.Descriptor.Authors},
			{&c.Descriptor.Licenses, &o.Descriptor.Licenses},
			{&c.Descriptor.DatasetsURL, &o.Descriptor.DatasetsURL},
		} {
			if !slices.Equal(*f.have, *f.other) {
				*f.have = nil
			}
		}
		if !equalLanguages(c.Config.Capabilities, o.Config.Capabilities) {
			c.Config.Capabilities = nil
		}
	}
	return c
}

func equalLanguages(x, y *convert.Capabilities) bool {
	return (x == nil) == (y == nil) && (x == nil || slices.Equal(x.Languages, y.Languages))
}

package files

import (
	"regexp"
	"strings"

	"github.com/ballast-dev/ballast/convert"
)

// cardName is the file whose front matter describes a model. maxCard limits it, in bytes.
const (
	cardName = "README.md"
	maxCard  = 1 << 20 // 1 MiB
)

// cardLine matches a line of front matter: a key with a value, or an element of a list.
var cardLine = regexp.MustCompile(`^(?:([A-Za-z_][A-Za-z0-9_-]*):|[ \t]*-)(?:[ \t]+(.*))?$`)

// cardOf returns what the front matter of a README.md says that a ModelPack config has a place for: the licence, the
// name, the languages and the datasets. Of YAML it reads texts and lists of texts; everything else is left out, as
// other keys are: they stay in the file, which is a part of the model.
// https://github.com/huggingface/huggingface_hub/blob/v1.2.0/src/huggingface_hub/repocard_data.py
func cardOf(p []byte) (c convert.Config) {
	text := strings.ReplaceAll(strings.TrimPrefix(string(p), "\ufeff"), "\r\n", "\n")
	text, ok := strings.CutPrefix(text, "---\n")
	head, _, closed := strings.Cut("\n"+text, "\n---")
	if !ok || !closed {
		return c
	}
	card, key := map[string][]string{}, ""
	for line := range strings.Lines(head) {
		line = strings.TrimRight(line, " \t\n")
		m := cardLine.FindStringSubmatch(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case m == nil: // of a value with several lines
			key = ""
		case m[1] != "":
			key = m[1]
			card[key] = texts(m[2])
		case key != "":
			card[key] = append(card[key], texts(m[2])...)
		}
	}
	first := func(key string) string { return strings.Join(card[key][:min(1, len(card[key]))], "") }
	c.Descriptor.Name = first("model_name")
	for _, l := range card["license"] {
		if l == "other" {
			l = first("license_name")
		}
		if l != "" && l != "unknown" {
			c.Descriptor.Licenses = append(c.Descriptor.Licenses, l)
		}
	}
	for _, d := range card["datasets"] {
		c.Descriptor.DatasetsURL = append(c.Descriptor.DatasetsURL, "https://huggingface.co/datasets/"+d)
	}
	for _, l := range card["language"] {
		if languageCode.MatchString(l) {
			if c.Config.Capabilities == nil {
				c.Config.Capabilities = &convert.Capabilities{}
			}
			c.Config.Capabilities.Languages = append(c.Config.Capabilities.Languages, l)
		}
	}
	return c
}

// languageCode matches the languages that ModelPack has.
var languageCode = regexp.MustCompile(`^[a-z]{2}$`)

// texts returns the texts of a value in YAML.
func texts(value string) (list []string) {
	values := []string{value}
	if inner, ok := strings.CutPrefix(value, "["); ok {
		inner, _, _ = strings.Cut(inner, "]")
		values = strings.Split(inner, ",")
	}
	for _, s := range values {
		s, _, _ = strings.Cut(s, " #")
		s = strings.TrimSpace(s)
		if n := len(s); n > 1 && (s[0] == '"' || s[0] == '\'') && s[n-1] == s[0] {
			s = s[1 : n-1]
		}
		if s != "" && !strings.ContainsAny(s[:1], "|>&*!{[\"'%@`") && s != "null" && s != "~" {
			list = append(list, s)
		}
	}
	return list
}

package files

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/google/go-cmp/cmp"
)

func TestCard(t *testing.T) {
	t.Parallel()
	with := func(licenses, datasets, languages string) (c convert.Config) {
		c.Descriptor.Licenses, c.Descriptor.DatasetsURL = strings.Fields(licenses), strings.Fields(datasets)
		if languages != "" {
			c.Config.Capabilities = &convert.Capabilities{Languages: strings.Fields(languages)}
		}
		return c
	}
	named := with("mit", "", "")
	named.Descriptor.Name = "A model: 7B"
	for name, tt := range map[string]struct {
		text string
		want convert.Config
	}{
		"a card":            {"---\nlicense: apache-2.0\nlanguage:\n- en\n- de\n- zho\ndatasets:\n  - a/b # comment\ntags:\n- x\nbase_model: a/b\n---\n# Model\nlicense: no\n", with("apache-2.0", "https://huggingface.co/datasets/a/b", "en de")},
		"of Windows":        {"\ufeff---\r\nlicense: mit\r\n---\r\n", with("mit", "", "")},
		"quoted":            {"---\nlicense: \"mit\"\nmodel_name: 'A model: 7B'\n---", named},
		"a list":            {"---\nlicense: [mit, 'gpl-3.0']\nlanguage: []\n---\n", with("mit gpl-3.0", "", "")},
		"its own licence":   {"---\nlicense_name: llama3\nlicense: other\n---\n", with("llama3", "", "")},
		"unknown":           {"---\nlicense: unknown\ndatasets: null\n---\n", convert.Config{}},
		"other values":      {"---\nlicense: |\n  mit\n- apache-2.0\nlanguage: &a\nmodel-index:\n- name: x\n  results: []\n---\n", convert.Config{}},
		"not closed":        {"---\nlicense: mit\n", convert.Config{}},
		"no front matter":   {"# Model\n---\nlicense: mit\n---\n", convert.Config{}},
		"nothing":           {"", convert.Config{}},
		"empty":             {"---\n---\n", convert.Config{}},
		"the last one wins": {"---\nlicense: a\nlicense: mit\n---\n", with("mit", "", "")},
	} {
		got := cardOf([]byte(tt.text))
		if len(tt.want.Descriptor.Licenses) == 0 {
			tt.want.Descriptor.Licenses = nil
		}
		if len(tt.want.Descriptor.DatasetsURL) == 0 {
			tt.want.Descriptor.DatasetsURL = nil
		}
		if d := cmp.Diff(got, tt.want); d != "" {
			t.Errorf("%s (-got +want):\n%s", name, d)
		}
	}
}

// FuzzCard: what a card says is in its text, and a config with it can be read again.
func FuzzCard(f *testing.F) {
	f.Add("---\nlicense: [mit, \"x\"]\nlanguage:\n- en\nmodel_name: 'a'\n---\n")
	f.Fuzz(func(t *testing.T, text string) {
		c := cardOf([]byte(text))
		for _, s := range slices.Concat(c.Descriptor.Licenses, []string{c.Descriptor.Name}) {
			if !strings.Contains(text, s) {
				t.Errorf("%q is not in the card", s)
			}
		}
		p, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := convert.ParseConfig(p); err != nil {
			t.Errorf("%s: %v", p, err)
		}
	})
}

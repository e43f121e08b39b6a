package headers_test

import (
	"encoding/json"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/headers"
	"github.com/google/go-cmp/cmp"
)

// FuzzDescribe gives the bytes of a file in two pieces and at once, and writes what is known of it as
// a config.
func FuzzDescribe(f *testing.F) {
	f.Add(uint8(0), converttest.GGUF(converttest.SmallGGUF()), uint16(20))
	f.Add(uint8(1), tensors(8), uint16(9))
	f.Add(uint8(1), []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, '{'}, uint16(1))
	f.Add(uint8(2), []byte(`{"architectures":["LlamaForCausalLM"],"model_type":"llama","max_position_embeddings":4096,"quantization_config":{"bits":4}}`), uint16(3))
	f.Add(uint8(2), []byte(`{"max_position_embeddings":-1,"text_config":{"n_positions":9223372036854775807}}`), uint16(3))
	f.Fuzz(func(t *testing.T, kind uint8, p []byte, cut uint16) {
		path := []string{"a.gguf", "a.safetensors", "config.json"}[kind%3]
		describe := func(pieces ...[]byte) headers.Report {
			s := headers.NewSniffer(path, int64(len(p)))
			for _, q := range pieces {
				if n, err := s.Write(q); n != len(q) || err != nil {
					t.Fatalf("Write: %d, %v", n, err)
				}
			}
			return headers.Describe([]*headers.Sniffer{s})
		}
		whole := describe(p)
		n := min(int(cut), len(p))
		if diff := cmp.Diff(describe(p[:n], p[n:]), whole); diff != "" {
			t.Fatalf("in pieces, at once:\n%s", diff)
		}
		if whole.ContextLength < 0 {
			t.Fatalf("context of %d", whole.ContextLength)
		}
		q, err := json.Marshal(whole.Config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := convert.ParseConfig(q); err != nil {
			t.Fatalf("config %s: %v", q, err)
		}
	})
}

package modelpack_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// TestAnnotationsAreOptional has weights without paths: their names are generated.
func TestAnnotationsAreOptional(t *testing.T) {
	t.Parallel()
	const cnai = "application/vnd.cnai.model."
	weight := func(mediaType, data string) converttest.Layer {
		return converttest.Layer{MediaType: mediaType, Data: data}
	}
	for _, tt := range []struct {
		name, config string
		layers       []converttest.Layer
		want         []string
	}{
		{"a weight of the format in the config", `{"config":{"format":"GGUF"}}`, []converttest.Layer{weight(cnai+"weight.v1", "x")}, []string{"model.gguf"}},
		{"shards", `{"config":{"format":"safetensors"}}`, []converttest.Layer{weight(cnai+"weight.v1", "x"), weight(cnai+"weight.v1", "y")},
			[]string{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}},
		{"the media type says the format", "{}", []converttest.Layer{weight(cnai+"weight.v1.gguf", "x")}, []string{"model.gguf"}},
		{"no format", "{}", []converttest.Layer{weight(raw, "x")}, []string{"model.bin"}},
		{"a format that is a path", `{"config":{"format":"../../x"}}`, []converttest.Layer{weight(cnai+"weight.v1", "x")}, []string{"model.bin"}},
		{"one with a path does not count", `{"config":{"format":"onnx"}}`, []converttest.Layer{weight(cnai+"weight.v1", "x"), {MediaType: cnai + "weight.v1", Data: "y", Annotations: converttest.At("a/b")}},
			[]string{"a/b", "model.onnx"}},
	} {
		m, err := parse(tt.config, tt.layers...)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if diff := cmp.Diff(tt.want, paths(m)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	if _, err := parse("{}", weight(docRaw, "x")); !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), "layer 0") {
		t.Errorf("a document without a path: got %v", err)
	}
}

package carton

import (
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
)

// TestLayerOf finds the layer of an artifact that is a carton.
func TestLayerOf(t *testing.T) {
	layer := func(mediaType, key, value string) convert.Descriptor {
		var d convert.Descriptor
		d.MediaType, d.Annotations = mediaType, map[string]string{key: value}
		return d
	}
	tar := layer(mediatype.OCILayer, "", "")
	for _, c := range []struct {
		name   string
		layers []convert.Descriptor
		want   int
		ok     bool
	}{
		{"none", []convert.Descriptor{tar}, 0, false},
		{"title", []convert.Descriptor{tar, layer(mediatype.OCILayer, mediatype.AnnotationTitle, "a.Carton")}, 1, true},
		{"filepath", []convert.Descriptor{layer("application/octet-stream", mediatype.AnnotationFilepath, "dir/a.carton")}, 0, true},
		{"media type", []convert.Descriptor{tar, layer("application/vnd.carton.v1+zip", "", "")}, 1, true},
		{"short media type", []convert.Descriptor{layer("application/vnd.carton", "", "")}, 0, true},
		{"another media type", []convert.Descriptor{layer("application/vnd.cartoonist", "", "")}, 0, false},
		{"two", []convert.Descriptor{layer("application/vnd.carton", "", ""), layer("application/vnd.carton", "", "")}, 0, false},
	} {
		if got, ok := layerOf(&convert.Manifest{Layers: c.layers}); got != c.want || ok != c.ok {
			t.Errorf("%s: got %d, %v, want %d, %v", c.name, got, ok, c.want, c.ok)
		}
	}
}

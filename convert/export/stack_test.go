package export_test

import (
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/google/go-cmp/cmp"
)

// TestChangesets checks that early CNAI, whose layers change those below, gives the final files.
func TestChangesets(t *testing.T) {
	s, c := registrytest.New(t), client(t, remote.Credentials{})
	file := func(p, data string) converttest.File {
		return converttest.File{Path: p, Data: []byte(data), Mode: 0o644}
	}
	below := converttest.Tar(file("config.json", "old"), file("a.bin", "aaaa"), file("b.bin", "bbbb"))
	above := converttest.Tar(file("config.json", "newer"), file(".wh.a.bin", ""))
	want := map[string]converttest.File{"config.json": file("config.json", "newer"), "b.bin": file("b.bin", "bbbb")}
	for name, layers := range map[string][]converttest.Layer{
		"plain":      {{MediaType: mediatype.OCILayer, Data: string(below)}, {MediaType: mediatype.OCILayer, Data: string(above)}},
		"compressed": {{MediaType: mediatype.OCILayer, Data: string(below)}, {MediaType: mediatype.OCILayerGzip, Data: string(converttest.Compress(above, filetable.CodecGzip))}},
	} {
		b := converttest.Make(converttest.Spec{ArtifactType: mediatype.CNAIManifest, ConfigType: mediatype.OCIEmpty, Config: "{}", Layers: layers})
		ref := s.Add("models/"+name, "1", b)
		for _, form := range forms {
			t.Run(name+"/"+form.name, func(t *testing.T) {
				dir := t.TempDir()
				if _, err := export.Run(t.Context(), fromServer(t, c, ref), toLayout(t, dir, "v1"), form.o); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(sums(want), sums(read(t, dir, "v1"))); diff != "" {
					t.Errorf("files (-want +got):\n%s", diff)
				}
			})
		}
	}
}

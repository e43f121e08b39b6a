package export_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// owned returns a ModelPack whose files have all attributes, in an archive and in the metadata of a raw layer.
func owned(at time.Time) *converttest.Built {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	h := tar.Header{Typeflag: tar.TypeReg, Name: "config.json", Size: 2, Mode: 0o640, Uid: 1000, Gid: 3_000_000, Uname: "u", Gname: "g", ModTime: at}
	if err := w.WriteHeader(&h); err != nil {
		panic(err)
	}
	if _, err := w.Write([]byte("{}")); err != nil {
		panic(err)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	const model = "application/vnd.cncf.model."
	weights := converttest.At("sub/run.bin")
	weights["org.cncf.model.file.metadata+json"] = fmt.Sprintf(`{"mode":493,"uid":4000000000,"gid":7,"mtime":%q}`, at.Add(time.Second).Format(time.RFC3339))
	return converttest.Make(converttest.Spec{
		ArtifactType: model + "manifest.v1+json", ConfigType: model + "config.v1+json", Config: `{"descriptor":{"name":"n"}}`,
		Layers: []converttest.Layer{
			{MediaType: model + "weight.config.v1.tar", Data: buf.String()},
			{MediaType: model + "weight.v1.raw", Data: "weights", Annotations: weights},
		},
	})
}

// attributes returns the attributes of files, without where their bytes are.
func attributes(src *resolve.Source) (list []filetable.File) {
	for _, f := range src.Model.Table.Files {
		f.Source, f.Digest, f.Layer = nil, "", 0
		list = append(list, f)
	}
	return list
}

// TestCNAI checks that a CNAI artifact is what modctl v0.2.2 builds with --raw=false, that its reader has the
// attributes of the source, and that it can be written again.
// https://github.com/modelpack/modctl/blob/v0.2.2/pkg/backend/build/legacy.go
func TestCNAI(t *testing.T) {
	s, c := registrytest.New(t), client(t, remote.Credentials{})
	at := time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)
	src := fromServer(t, c, s.Add("from", "1", owned(at)))
	type layer struct{ Type, Path, Metadata, Header, Content string }
	want := []layer{
		{
			"application/vnd.cnai.model.weight.config.v1.tar", "config.json",
			`{"name":"config.json","mode":416,"uid":1000,"gid":3000000,"size":2,"mtime":"2024-05-06T07:08:09Z","typeflag":0}`,
			"config.json 0 640 1000 3000000 2024-05-06 07:08:09 +0000 UTC", "{}",
		}, {
			"application/vnd.cnai.model.weight.v1.tar", "sub/run.bin",
			`{"name":"run.bin","mode":493,"uid":4000000000,"gid":7,"size":7,"mtime":"2024-05-06T07:08:10Z","typeflag":0}`,
			"sub/run.bin 0 755 4000000000 7 2024-05-06 07:08:10 +0000 UTC", "weights",
		},
	}
	before := attributes(src)
	for n := range 2 {
		dir := t.TempDir()
		to := toLayout(t, dir, "1")
		res, err := export.Run(t.Context(), src, to, export.Options{Form: export.FormCNAI})
		if err != nil {
			t.Fatal(err)
		}
		var m ocispec.Manifest
		if err := json.Unmarshal(res.Manifest, &m); err != nil {
			t.Fatal(err)
		}
		if m.ArtifactType != "application/vnd.cnai.model.manifest.v1+json" || m.Config.MediaType != "application/vnd.cnai.model.config.v1+json" || m.MediaType != ocispec.MediaTypeImageManifest {
			t.Errorf("types %s, %s, %s", m.MediaType, m.ArtifactType, m.Config.MediaType)
		}
		var got []layer
		for _, l := range m.Layers {
			r := tar.NewReader(bytes.NewReader(tarOf(t, dir, l)))
			h, err := r.Next()
			if err != nil {
				t.Fatal(err)
			}
			p, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			if h, err := r.Next(); err != io.EOF {
				t.Errorf("a second member %+v, %v", h, err)
			}
			got = append(got, layer{
				l.MediaType, l.Annotations["org.cnai.model.filepath"], l.Annotations["org.cnai.model.file.metadata+json"],
				fmt.Sprintf("%s %c %o %d %d %s", h.Name, h.Typeflag, h.Mode, h.Uid, h.Gid, h.ModTime.UTC()), string(p),
			})
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d: layers (-want +got):\n%s", n, diff)
		}
		config, err := os.ReadFile(filepath.Join(dir, "blobs/sha256", m.Config.Digest.Encoded()))
		if wantConfig := fmt.Sprintf(`{"descriptor":{"name":"n"},"modelfs":{"type":"layers","diffIds":[%q,%q]},"config":{}}`, m.Layers[0].Digest, m.Layers[1].Digest); err != nil || string(config) != wantConfig {
			t.Errorf("%d: config %s, want %s: %v", n, config, wantConfig, err)
		}
		if want := []string{fmt.Sprintf("%d archives of the origin: their files are kept, not their bytes", n+1)}; !cmp.Equal(res.Losses, want) {
			t.Errorf("%d: losses %q, want %q", n, res.Losses, want)
		}
		src = fromLayout(t, to)
		if diff := cmp.Diff(before, attributes(src)); diff != "" || src.Model.Table.Origin.Format != string(mediatype.FormatCNAI) {
			t.Errorf("%d: read as %s; files (-written +read):\n%s", n, src.Model.Table.Origin.Format, diff)
		}
	}
	if err := (export.Options{Form: export.FormCNAI, Tar: true}).Check(); err == nil {
		t.Error("tars are no choice, but can be chosen")
	}
}

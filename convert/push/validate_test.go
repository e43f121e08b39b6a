package push_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/push"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// linked makes a ModelPack whose one archive has a file, a link to it and directories.
func linked() *converttest.Built {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range []tar.Header{
		{Name: "dir/", Typeflag: tar.TypeDir, Mode: 0o750},
		{Name: "dir/w.bin", Typeflag: tar.TypeReg, Mode: 0o644, Size: 5},
		{Name: "empty/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "link.bin", Typeflag: tar.TypeSymlink, Linkname: "dir/w.bin"},
	} {
		if err := w.WriteHeader(&h); err != nil {
			panic(err)
		}
		if h.Size > 0 {
			if _, err := w.Write([]byte("bytes")); err != nil {
				panic(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return converttest.Make(converttest.Spec{
		ArtifactType: "application/vnd.cncf.model.manifest.v1+json",
		ConfigType:   "application/vnd.cncf.model.config.v1+json", Config: `{}`,
		Layers: []converttest.Layer{{MediaType: "application/vnd.cncf.model.weight.v1.tar", Data: buf.String()}},
	})
}

// good returns a manifest and a config that follow the rules.
func good(t testing.TB) (manifest, config []byte) {
	t.Helper()
	s, c := newServer(t), client(t, remote.Credentials{})
	ref := s.add("m", "1", converttest.ModelPackRaw(converttest.Files(weights(1<<10))))
	if _, err := push.Convert(t.Context(), fromServer(t, c, ref), toServer(t, c, s.host()+"/out:1"), push.Options{Form: push.FormModelPack}); err != nil {
		t.Fatal(err)
	}
	manifest = s.manifest("out:1")
	var m ocispec.Manifest
	if err := json.Unmarshal(manifest, &m); err != nil {
		t.Fatal(err)
	}
	return manifest, s.blob("out")[m.Config.Digest]
}

// TestValidate breaks one rule at a time.
func TestValidate(t *testing.T) {
	manifest, config := good(t)
	if err := push.Validate(manifest, config); err != nil {
		t.Fatal(err)
	}
	refit := func(m, c string) error { // with the digest of the config that it has
		m = strings.Replace(m, digest.FromBytes(config).String(), digest.FromString(c).String(), 1)
		var v map[string]any
		if err := json.Unmarshal([]byte(m), &v); err != nil {
			t.Fatal(err)
		}
		v["config"].(map[string]any)["size"] = len(c)
		p, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return push.Validate(p, []byte(c))
	}
	if err := refit(string(manifest), string(config)); err != nil {
		t.Fatal(err)
	}
	for _, r := range [][2]string{
		{`"schemaVersion":2`, `"schemaVersion":1`},
		{`"mediaType":"application/vnd.oci.image.manifest.v1+json"`, `"mediaType":"application/json"`},
		{`"artifactType":"application/vnd.cncf`, `"artifactType":"application/vnd.cnai`},
		{`application/vnd.cncf.model.config.v1+json`, `application/vnd.oci.image.config.v1+json`},
		{`application/vnd.cncf.model.weight.v1.raw`, `application/vnd.cncf.model.weight.v1.gguf`},
		{`application/vnd.cncf.model.weight.v1.raw`, `application/vnd.cnai.model.weight.v1.raw`},
		{`"org.cncf.model.filepath":"model.gguf"`, `"org.cncf.model.filepath":"../model.gguf"`},
		{`"org.cncf.model.filepath":"model.gguf"`, `"org.cnai.model.filepath":"model.gguf"`},
		{`"org.cncf.model.file.metadata+json"`, `"org.cncf.model.file.metadata"`},
		{`\"size\":1024`, `\"size\":1023`},
		{`\"typeflag\":0`, `\"typeflag\":\"0\"`},
	} {
		bad := strings.Replace(string(manifest), r[0], r[1], 1)
		if bad == string(manifest) {
			t.Fatalf("%s is not in %s", r[0], manifest)
		}
		if err := refit(bad, string(config)); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s for %s: got %v", r[1], r[0], err)
		}
	}
	for _, r := range [][2]string{
		{`"descriptor":{`, `"description":{`},
		{`"descriptor":{`, `"descriptor":{"size":1,`},
		{`"modelfs":{`, `"rootfs":{`},
		{`"config":{`, `"config":{"parameterSize":1,`},
		{`"config":{`, `"more":1,"config":{`},
		{`"diffIds":["sha256:`, `"diffIds":["sha512:`},
		{`"diffIds":[`, `"diffIds":["` + digest.FromString("").String() + `",`},
		{`"diffIds"`, `"diff_ids"`},
		{`"type":"layers"`, `"type":"files"`},
		{`"name":"a-model"`, `"name":""`},
		{`"name":"a-model"`, `"version":3`},
		{`"createdAt":"2025-01-01T00:00:00Z"`, `"createdAt":"yesterday"`},
		{`"paramSize":"8b"`, `"paramSize":"8 billion"`},
		{`"config":{`, `"config":{"capabilities":{"inputTypes":["smell"]},`},
		{`"config":{`, `"config":{"capabilities":{"languages":["english"]},`},
		{`"config":{`, `"config":{"capabilities":{"knowledgeCutoff":"2025"},`},
		{`{"descriptor"`, `{}{"descriptor"`},
	} {
		bad := strings.Replace(string(config), r[0], r[1], 1)
		if bad == string(config) {
			t.Fatalf("%s is not in %s", r[0], config)
		}
		if err := refit(string(manifest), bad); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s for %s: got %v", r[1], r[0], err)
		}
	}
	if err := push.Validate(manifest, append(config, ' ')); !errdefs.IsInvalidArgument(err) {
		t.Errorf("another config: got %v", err)
	}
}

// FuzzValidate must not panic, and what it accepts has layers and diffIDs.
func FuzzValidate(f *testing.F) {
	manifest, config := good(f)
	f.Add(manifest, config)
	f.Add([]byte(`{}`), []byte(`{}`))
	f.Add([]byte(`{"layers":null,"config":{"digest":"x"}}`), []byte(`null`))
	f.Fuzz(func(t *testing.T, m, c []byte) {
		if push.Validate(m, c) == nil && (!bytes.Contains(m, []byte("layers")) || !bytes.Contains(c, []byte("diffIds"))) {
			t.Errorf("accepted %q %q", m, c)
		}
	})
}

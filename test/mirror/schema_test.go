package mirror

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/ballast-dev/ballast/convert/layout"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/modelpack/model-spec/schema"
	spec "github.com/modelpack/model-spec/specs-go/v1"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// strict decodes JSON; a member that v does not have is an error.
func strict(p []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(p))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

// checkConfig checks a ModelPack config with the schema of the specification, and with its Go type,
// since the schema does not restrict times and digests. (The type lacks members of the schema.)
func checkConfig(p []byte, layers []ocispec.Descriptor) error {
	if err := schema.ValidatorMediaTypeModelConfig.Validate(bytes.NewReader(p)); err != nil {
		return err
	}
	var m spec.Model
	if err := json.Unmarshal(p, &m); err != nil {
		return err
	}
	if len(m.ModelFS.DiffIDs) != len(layers) {
		return fmt.Errorf("%d diffIds for %d layers", len(m.ModelFS.DiffIDs), len(layers))
	}
	for i, d := range m.ModelFS.DiffIDs {
		if err := d.Validate(); err != nil {
			return fmt.Errorf("diffId %d: %w", i, err)
		}
		if strings.HasSuffix(layers[i].MediaType, ".raw") && d != layers[i].Digest {
			return fmt.Errorf("diffId %d is not the digest of the raw layer", i)
		}
	}
	return nil
}

// modelTypes are the media types of layers that the specification lists.
var modelTypes = map[string]bool{
	spec.MediaTypeModelWeightRaw: true, spec.MediaTypeModelWeight: true,
	spec.MediaTypeModelWeightConfigRaw: true, spec.MediaTypeModelWeightConfig: true,
	spec.MediaTypeModelDocRaw: true, spec.MediaTypeModelDoc: true,
	spec.MediaTypeModelCodeRaw: true, spec.MediaTypeModelCode: true,
	spec.MediaTypeModelDatasetRaw: true, spec.MediaTypeModelDataset: true,
}

// checkManifest checks the manifest of a model against the specification.
func checkManifest(m ocispec.Manifest) error {
	if m.ArtifactType != spec.ArtifactTypeModelManifest || m.Config.MediaType != spec.MediaTypeModelConfig || m.MediaType != ocispec.MediaTypeImageManifest {
		return fmt.Errorf("types %s, %s, %s", m.MediaType, m.ArtifactType, m.Config.MediaType)
	}
	for _, l := range m.Layers {
		if !modelTypes[l.MediaType] || l.Annotations[spec.AnnotationFilepath] == "" {
			return fmt.Errorf("layer %s of %q", l.MediaType, l.Annotations[spec.AnnotationFilepath])
		}
		var meta spec.FileMetadata
		if err := strict([]byte(l.Annotations[spec.AnnotationFileMetadata]), &meta); err != nil {
			return fmt.Errorf("metadata of %s: %w", l.Annotations[spec.AnnotationFilepath], err)
		}
		if strings.HasSuffix(l.MediaType, ".raw") && meta.Size != l.Size {
			return fmt.Errorf("metadata of %s: size %d of %d", l.Annotations[spec.AnnotationFilepath], meta.Size, l.Size)
		}
	}
	return nil
}

// TestSchema checks the configs of every format in the forms that have them. An image of ballast has
// the members of ModelPack in its image config, in addition to those of images.
func TestSchema(t *testing.T) {
	reg := node.StartRegistry(t, t.TempDir())
	all := converttest.All(converttest.Files(converttest.GGUF(converttest.SmallGGUF())))
	for i, b := range append(all, converttest.OllamaTensors(converttest.TensorNamed, converttest.Tensors(20, 512)).Built) {
		from := reg.Ref("from/"+b.Name, fmt.Sprint(i))
		reg.Push(t, "from/"+b.Name, fmt.Sprint(i), node.Artifact{Manifest: b.Manifest, MediaType: b.MediaType, Blobs: b.Blobs})
		for _, o := range []export.Options{{Form: export.FormModelPack}, {Form: export.FormModelPack, Tar: true}, {Form: export.FormCNAI}, {}, {Compress: export.CompressSeekable}} {
			dir := t.TempDir()
			l, err := layout.Create(dir, "1")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			m := convert(t, from, l, o)
			config := blobOf(t, dir, m.Config.Digest)
			if o.Form == export.FormCNAI {
				m = renamed(t, m)
			}
			if o.Form != "" {
				if err := checkManifest(m); err != nil {
					t.Errorf("%s as %+v: manifest: %v", b.Name, o, err)
				}
			} else {
				config = withoutImage(t, config)
			}
			if err := checkConfig(config, m.Layers); err != nil {
				t.Errorf("%s as %+v: config: %v", b.Name, o, err)
			}
		}
	}
}

// renamed returns a manifest of CNAI with the names of ModelPack, which differ in the same four letters everywhere.
func renamed(t *testing.T, m ocispec.Manifest) (as ocispec.Manifest) {
	t.Helper()
	p, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(p, []byte(".cncf.")) {
		t.Errorf("CNAI with names of ModelPack: %s", p)
	}
	if err := json.Unmarshal(bytes.ReplaceAll(p, []byte(".cnai."), []byte(".cncf.")), &as); err != nil {
		t.Fatal(err)
	}
	return as
}

// withoutImage returns the ModelPack config in an image config.
func withoutImage(t *testing.T, p []byte) []byte {
	t.Helper()
	var c struct {
		Descriptor json.RawMessage `json:"descriptor"`
		ModelFS    json.RawMessage `json:"modelfs"`
		Config     json.RawMessage `json:"config"`
	}
	if err := json.Unmarshal(p, &c); err != nil {
		t.Fatal(err)
	}
	p, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func blobOf(t *testing.T, layout string, d digest.Digest) []byte {
	t.Helper()
	p, err := os.ReadFile(filepath.Join(layout, "blobs/sha256", d.Encoded()))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestSchemaSees has valid configs, and configs that the schema refuses.
func TestSchemaSees(t *testing.T) {
	const testdata = "../../convert/modelpack/testdata/" // of the specification; see its README
	config, err := os.ReadFile(testdata + "modelpack-config-example.config.json")
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := os.ReadFile(testdata + "modelpack-spec-example.manifest.json")
	if err != nil {
		t.Fatal(err)
	}
	// The example has a member that was added after the version of the schema in the module.
	config = bytes.Replace(config, []byte(`"datasetsURL": ["https://www.xyz.com/datasets/"],`), nil, 1)
	var m ocispec.Manifest
	if err := json.Unmarshal(manifest, &m); err != nil {
		t.Fatal(err)
	}
	var c spec.Model
	if err := json.Unmarshal(config, &c); err != nil {
		t.Fatal(err)
	}
	if m.ArtifactType != spec.ArtifactTypeModelManifest || reflect.ValueOf(c.Descriptor).IsZero() {
		t.Errorf("examples of the specification: %s, %+v", m.ArtifactType, c.Descriptor)
	}
	layers := make([]ocispec.Descriptor, len(c.ModelFS.DiffIDs))
	if err := checkConfig(config, layers); err != nil {
		t.Errorf("the example of the specification: %v", err)
	}
	for _, r := range [][2]string{
		{`"config": {`, `"config": {"parameterSize": 1,`}, {`"descriptor": {`, `"more": 1, "descriptor": {`},
		{`"diffIds"`, `"diff_ids"`}, {`"layers"`, `"files"`}, {`"2025-01-01T00:00:00Z"`, `"yesterday"`}, {`"sha256:`, `"sha512:`},
	} {
		bad := bytes.Replace(config, []byte(r[0]), []byte(r[1]), 1)
		if bytes.Equal(bad, config) {
			t.Errorf("%s is not in %s", r[0], config)
		} else if err := checkConfig(bad, layers); err == nil {
			t.Errorf("%s for %s is taken", r[1], r[0])
		}
	}
}

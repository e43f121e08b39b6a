package mirror

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/santhosh-tekuri/jsonschema/v5"
)

// bomSchema returns the schema of CycloneDX 1.6, which the module of its library has.
func bomSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go").Output()
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat = true
	for name, file := range map[string]string{"bom-1.6.schema.json": "bom-1.6.schema.json", "spdx.schema.json": "spdx.schema.json", "jsf-0.82.schema.json": "jsf-0.82.schemax.json"} {
		p, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "schema", file))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.AddResource("http://cyclonedx.org/schema/"+name, bytes.NewReader(p)); err != nil {
			t.Fatal(err)
		}
	}
	s, err := c.Compile("http://cyclonedx.org/schema/bom-1.6.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// checkBOM checks a bill of materials with the schema, and reads it with the library.
func checkBOM(s *jsonschema.Schema, p []byte) (*cdx.BOM, error) {
	var v any
	if err := json.Unmarshal(p, &v); err != nil {
		return nil, err
	}
	if err := s.Validate(v); err != nil {
		return nil, err
	}
	var bom cdx.BOM
	return &bom, cdx.NewBOMDecoder(bytes.NewReader(p), cdx.BOMFileFormatJSON).Decode(&bom)
}

// withConfig returns a model with another descriptor in its config.
func withConfig(t *testing.T, b *converttest.Built, descriptor string) *converttest.Built {
	t.Helper()
	var m ocispec.Manifest
	var config map[string]json.RawMessage
	if err := json.Unmarshal(b.Manifest, &m); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b.Blobs[m.Config.Digest], &config); err != nil {
		t.Fatal(err)
	}
	config["descriptor"] = json.RawMessage(descriptor)
	p, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	m.Config.Digest, m.Config.Size = digest.FromBytes(p), int64(len(p))
	b.Blobs[m.Config.Digest] = p
	if b.Manifest, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestBOMSchema checks the bills of materials of every format, and of models that say odd things of themselves.
func TestBOMSchema(t *testing.T) {
	schema, ballast := bomSchema(t), filepath.Join(t.TempDir(), "ballast")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", ballast, "./cmd/ballast")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	models := converttest.All(converttest.Files(converttest.GGUF(converttest.SmallGGUF())))
	for _, descriptor := range []string{
		`{"name":"n","version":"1","authors":["A","A"],"vendor":"V","family":"f","licenses":["apache-2.0","GPL-3.0","llama3.1","MIT OR Apache-2.0"],"createdAt":"2025-01-01T00:00:00Z"}`,
		`{"name":"n","licenses":["mit AND apache-2.0"],"docURL":"https://d.example/x?y=z#f","sourceURL":"https://d.example/a b","datasetsURL":["https://d.example/%zz","s s","https://d.example/s"]}`,
		`{"name":"\u0000\u202e\ud800<&>","docURL":"javascript:alert(1)","sourceURL":"https://","licenses":["","  ","MIT\n"],"authors":[""],"datasetsURL":[""]}`,
	} {
		b := converttest.ModelPackRaw(converttest.Files([]byte("GGUF")))
		models = append(models, withConfig(t, b, descriptor))
	}
	for _, b := range models {
		dir := t.TempDir()
		for name, p := range node.LayoutFiles(t, map[string]*converttest.Built{"": b}) {
			file := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, p, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		out, err := exec.CommandContext(t.Context(), ballast, "inspect", "--remote", "-o", "cyclonedx", "oci:"+dir).Output()
		if err != nil {
			t.Errorf("%s: %v", b.Name, err)
			continue
		}
		bom, err := checkBOM(schema, out)
		if err != nil {
			t.Errorf("%s: %v\n%s", b.Name, err, out)
			continue
		}
		if bom.Components == nil || len(*bom.Components) == 0 || bytes.Contains(out, []byte(dir)) {
			t.Errorf("%s: got %s", b.Name, out)
		}
	}
	// The schema sees what is wrong.
	for _, wrong := range []string{
		`{"bomFormat":"CycloneDX","specVersion":"1.6","metadata":{"component":{"type":"model","name":"n"}}}`,
		`{"bomFormat":"CycloneDX","specVersion":"1.6","components":[{"type":"file","name":"n","licenses":[{"license":{"id":"llama3.1"}}]}]}`,
		`{"bomFormat":"CycloneDX","specVersion":"1.6","components":[{"type":"file","name":"n","externalReferences":[{"type":"vcs","url":"http://[::1"}]}]}`,
		`{"bomFormat":"CycloneDX","specVersion":"1.6","components":[{"type":"file","name":"n","hashes":[{"alg":"SHA-256","content":"ab"}]}]}`,
	} {
		if _, err := checkBOM(schema, []byte(wrong)); err == nil {
			t.Errorf("the schema takes %s", wrong)
		}
	}
}

package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// decodeBOM reads a bill of materials.
func decodeBOM(t *testing.T, text string) *cdx.BOM {
	t.Helper()
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(strings.NewReader(text), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	if bom.SpecVersion != cdx.SpecVersion1_6 || bom.Metadata.Component.Type != cdx.ComponentTypeMachineLearningModel {
		t.Fatalf("got %s", text)
	}
	return &bom
}

// values returns the values of a property.
func values(c *cdx.Component, name string) (all []string) {
	for _, p := range *c.Properties {
		if p.Name == name {
			all = append(all, p.Value)
		}
	}
	return all
}

// TestBOM: the bill of materials of a model has the digest of each file, as far as it is known, and the origin.
func TestBOM(t *testing.T) {
	s := newSite(t)
	files := converttest.Files(converttest.GGUF(converttest.SmallGGUF()))
	for _, b := range []*converttest.Built{converttest.ModelPackRaw(files), converttest.ModelPackTarGzip(files), converttest.Ollama(files, converttest.OllamaConfigNew)} {
		ref := s.Add("a/"+b.Name, "v1", b)
		before := decodeBOM(t, s.ok(t, "inspect", "--remote", "-o", "cyclonedx", ref))
		s.ok(t, "prefetch", ref)
		bom := decodeBOM(t, s.ok(t, "inspect", "-o", "cyclonedx", ref))
		want := map[string]string{}
		for _, f := range b.Files {
			want["file:"+f.Path] = digest.FromBytes(f.Data).Encoded()
		}
		got := map[string]string{}
		for _, c := range *bom.Components {
			if c.Type != cdx.ComponentTypeFile || "file:"+c.Name != c.BOMRef || (*c.Hashes)[0].Algorithm != cdx.HashAlgoSHA256 {
				t.Errorf("%s: %+v", b.Name, c)
			}
			got[c.BOMRef] = (*c.Hashes)[0].Value
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: files (-want +got):\n%s", b.Name, d)
		}
		model, origin := bom.Metadata.Component, digest.FromBytes(b.Manifest).String()
		if links := *model.ExternalReferences; !slices.ContainsFunc(links, func(r cdx.ExternalReference) bool { return r.URL == "oci://"+ref && r.Type == cdx.ERTypeDistribution }) {
			t.Errorf("%s: links %+v", b.Name, links)
		}
		if !slices.Equal(values(model, "ballast:origin:digest"), []string{origin}) || !slices.Equal(values(model, "ballast:signature:state"), []string{"unchecked"}) {
			t.Errorf("%s: properties %+v", b.Name, model.Properties)
		}
		if !strings.HasPrefix(model.PackageURL, "pkg:oci/"+b.Name+"@sha256%3A") || !strings.HasSuffix(model.PackageURL, "/a/"+b.Name+"&tag=v1") {
			t.Errorf("%s: %s", b.Name, model.PackageURL)
		}
		if (*bom.Compositions)[0].Aggregate != cdx.CompositionAggregateComplete || bom.SerialNumber == before.SerialNumber {
			t.Errorf("%s: %+v, %s, before %s", b.Name, bom.Compositions, bom.SerialNumber, before.SerialNumber)
		}
		if inArchive := (*before.Compositions)[0].Aggregate == cdx.CompositionAggregateIncomplete; inArchive != (b.Name == "modelpack-tar-gzip") {
			t.Errorf("%s: before the download: %+v", b.Name, before.Compositions)
		}
	}
}

// TestBOMOfDetail has what an origin and rules say in the members of CycloneDX.
func TestBOMOfDetail(t *testing.T) {
	d := wire.Detail{
		Image: wire.Image{Record: wire.Record{Refs: []string{"hf.co/Org/Model:main", "./local"}, Origin: wire.Origin{Digest: digest.FromString("o"), Format: "artifact"}}},
		Blobs: []wire.Blob{{Digest: digest.FromString("b"), Archive: "tar"}, {Digest: digest.FromString("f")}},
		Files: []wire.File{{Path: "d", Type: wire.TypeDir}, {Path: "l", Type: wire.TypeSymlink, Target: "w"}, {Path: "w", Type: wire.TypeReg, Size: 3, Digest: digest.SHA512.FromString("w")}},
		Description: &wire.Description{
			Descriptor: wire.ModelDescriptor{
				Name: "n", Vendor: "Org", Authors: []string{"A"}, Revision: strings.Repeat("a", 40), Family: "f",
				DocURL: "https://models.example/doc", SourceURL: "javascript:alert(1)", DatasetsURL: []string{"https://d.example/s", "a set"},
				Licenses: []string{"apache-2.0", "llama3.1", "MIT OR Apache-2.0"},
			},
			Config:        wire.ModelConfig{Architecture: "llama", Quantization: "Q8_0", Capabilities: &wire.Capabilities{InputTypes: []string{"text"}}},
			ContextLength: 2048,
		},
		Signatures: []wire.SignatureResult{
			{Rule: "r", Mode: "enforce", State: wire.SignatureAccepted, Signers: []string{"key 1", "key 2"}},
			{Rule: "s", Mode: "warn", State: wire.SignatureRefused, Reasons: []string{"none"}},
		},
	}
	bom := billOf(d, time.Unix(0, 0))
	m := bom.Metadata.Component
	if m.Name != "n" || m.Supplier.Name != "Org" || (*m.Authors)[0].Name != "A" || bom.Metadata.Timestamp != "1970-01-01T00:00:00Z" {
		t.Errorf("got %+v", m)
	}
	if want := "pkg:huggingface/Org/Model@" + d.Description.Descriptor.Revision; m.PackageURL != want {
		t.Errorf("got %s, want %s", m.PackageURL, want)
	}
	wantLicences := cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}, {License: &cdx.License{Name: "llama3.1"}}, {License: &cdx.License{Name: "MIT OR Apache-2.0"}}}
	if diff := cmp.Diff(&wantLicences, m.Licenses); diff != "" {
		t.Errorf("licences (-want +got):\n%s", diff)
	}
	if got := licences([]string{"mit OR apache-2.0"}); (*got)[0].Expression != "MIT OR Apache-2.0" {
		t.Errorf("one expression: %+v", got)
	}
	wantLinks := []cdx.ExternalReference{{Type: cdx.ERTypeDocumentation, URL: "https://models.example/doc"}, {Type: cdx.ERTypeDistribution, URL: "https://huggingface.co/Org/Model"}}
	if diff := cmp.Diff(&wantLinks, m.ExternalReferences); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
	p := m.ModelCard.ModelParameters
	if p.ModelArchitecture != "llama" || p.ArchitectureFamily != "f" || (*p.Inputs)[0].Format != "text" || p.Outputs != nil || (*p.Datasets)[1].ComponentData.Name != "a set" {
		t.Errorf("model card: %+v", p)
	}
	for name, want := range map[string][]string{
		"ballast:signature:rule": {"r", "s"}, "ballast:signature:state": {"accepted", "refused"}, "ballast:signature:signer": {"key 1", "key 2"},
		"ballast:signature:reason": {"none"}, "ballast:sourceURL": {"javascript:alert(1)"}, "ballast:contextLength": {"2048"}, "ballast:quantization": {"Q8_0"},
	} {
		if got := values(m, name); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if files := *bom.Components; len(files) != 3 || files[0].Hashes != nil || (*files[1].Hashes)[0].Algorithm != cdx.HashAlgoSHA512 || files[2].Name != digest.FromString("b").String() {
		t.Errorf("files: %+v", files)
	}
	d.Description = nil
	if err := (&app{}).printBOM(d); err == nil || exitCode(t.Context(), err) != exitUnsupported {
		t.Errorf("an index: %v", err)
	}
}

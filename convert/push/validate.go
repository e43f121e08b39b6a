package push

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Validate returns errdefs.ErrInvalidArgument unless a manifest and its config follow the rules of
// the current ModelPack specification and of its schemas. It is stricter than readers are: no
// spelling of the past and no member that the specification does not have.
// https://github.com/modelpack/model-spec/blob/v0.0.7/schema/config-schema.json
func Validate(manifest, config []byte) error {
	if err := validateManifest(manifest, config); err != nil {
		return fmt.Errorf("ModelPack manifest: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return nil
}

func validateManifest(manifest, config []byte) error {
	var m ocispec.Manifest
	if err := strict(manifest, &m); err != nil {
		return err
	}
	switch {
	case m.SchemaVersion != 2:
		return fmt.Errorf("schemaVersion %d", m.SchemaVersion)
	case m.MediaType != mediatype.OCIManifest:
		return fmt.Errorf("mediaType %q", m.MediaType)
	case m.ArtifactType != mediatype.ModelPackManifest:
		return fmt.Errorf("artifactType %q", m.ArtifactType)
	case m.Config.MediaType != mediatype.ModelPackConfig:
		return fmt.Errorf("config: mediaType %q", m.Config.MediaType)
	case m.Config.Size != int64(len(config)):
		return fmt.Errorf("config: size %d of %d bytes", m.Config.Size, len(config))
	case len(m.Layers) == 0:
		return fmt.Errorf("no layers")
	}
	if err := verify.Bytes(m.Config.Digest, config); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	for i, l := range m.Layers {
		if err := validateLayer(l); err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
	}
	if err := validateConfig(config, len(m.Layers)); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	return nil
}

func validateLayer(l ocispec.Descriptor) error {
	t, err := mediatype.Parse(l.MediaType)
	if err != nil {
		return err
	}
	if t.Format != mediatype.FormatModelPack || t.Role != mediatype.RoleLayer || l.MediaType != mediatype.Layer(t.Format, t.Kind, t.Archive, t.Codec) {
		return fmt.Errorf("mediaType %q", l.MediaType)
	}
	if _, err := verify.ParseDigest(l.Digest.String()); err != nil {
		return err
	}
	if l.Size < 0 {
		return fmt.Errorf("size %d", l.Size)
	}
	p := l.Annotations[mediatype.AnnotationFilepath]
	if clean, err := filetable.CleanPath(p); err != nil || clean != p {
		return fmt.Errorf("path %q is not clean", p)
	}
	var meta fileMetadata
	if err := strict([]byte(l.Annotations[mediatype.AnnotationMetadata]), &meta); err != nil {
		return fmt.Errorf("file metadata: %w", err)
	}
	if t.Archive == filetable.ArchiveNone && meta.Size != l.Size {
		return fmt.Errorf("file metadata: size %d, not %d", meta.Size, l.Size)
	}
	return nil
}

var paramSize = regexp.MustCompile(`^[0-9]+(\.[0-9])?[KMBTQkmbtq]$`)

func validateConfig(p []byte, layers int) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(p, &members); err != nil {
		return err
	}
	for _, name := range []string{"descriptor", "modelfs", "config"} {
		if v := bytes.TrimSpace(members[name]); len(v) == 0 || v[0] != '{' {
			return fmt.Errorf("member %q is not an object", name)
		}
	}
	var cfg convert.Config
	if err := strict(p, &cfg); err != nil {
		return err
	}
	var descriptor map[string]json.RawMessage
	if err := json.Unmarshal(members["descriptor"], &descriptor); err != nil {
		return err
	}
	if name, ok := descriptor["name"]; ok && string(name) == `""` {
		return fmt.Errorf("descriptor.name is empty")
	}
	if cfg.ModelFS.Type != "layers" || len(cfg.ModelFS.DiffIDs) == 0 || len(cfg.ModelFS.DiffIDs) != layers {
		return fmt.Errorf("modelfs: type %q with %d diffIds for %d layers", cfg.ModelFS.Type, len(cfg.ModelFS.DiffIDs), layers)
	}
	for _, d := range cfg.ModelFS.DiffIDs {
		if _, err := verify.ParseDigest(d.String()); err != nil {
			return fmt.Errorf("modelfs: %w", err)
		}
	}
	if s := cfg.Config.ParamSize; s != "" && !paramSize.MatchString(s) {
		return fmt.Errorf("config.paramSize %q", s)
	}
	if err := validTime(cfg.Descriptor.CreatedAt); err != nil {
		return fmt.Errorf("descriptor.createdAt: %w", err)
	}
	return validateCapabilities(cfg.Config.Capabilities)
}

func validateCapabilities(k *convert.Capabilities) error {
	if k == nil {
		return nil
	}
	for _, s := range append(append([]string{}, k.InputTypes...), k.OutputTypes...) {
		if !isModality(s) {
			return fmt.Errorf("capabilities: type %q", s)
		}
	}
	for _, s := range k.Languages {
		if !language.MatchString(s) {
			return fmt.Errorf("capabilities: language %q", s)
		}
	}
	if err := validTime(k.KnowledgeCutoff); err != nil {
		return fmt.Errorf("capabilities.knowledgeCutoff: %w", err)
	}
	return nil
}

func validTime(s string) error {
	if s == "" {
		return nil
	}
	_, err := time.Parse(time.RFC3339, s)
	return err
}

// strict decodes JSON that must have no member that v does not have, and nothing after it.
func strict(p []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(p))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("something follows the JSON")
	}
	return nil
}

package convert

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Limits of a manifest.
const (
	// MaxManifestSize is the largest accepted manifest, in bytes. The largest one known, of an
	// Ollama model with a layer for each tensor, has 252 KB.
	MaxManifestSize = 8 << 20 // 8 MiB

	// MaxConfigSize is the largest accepted config, in bytes.
	MaxConfigSize = 4 << 20 // 4 MiB

	maxLayers   = 100_000
	maxChildren = 1000
)

// A Manifest is a parsed manifest or index. Its type follows from the body alone, not from the
// Content-Type header.
type Manifest struct {
	// Digest is the digest of the manifest, byte for byte as served.
	Digest digest.Digest

	// MediaType is the type in the body; may be empty.
	MediaType    string
	ArtifactType string

	// Config has an empty digest if the manifest has no config.
	Config      Descriptor
	Layers      []Descriptor
	Annotations map[string]string

	// Manifests are the entries of an index, which has neither Layers nor Config.
	Manifests []Descriptor

	// IsIndex is true for an index, even one without entries.
	IsIndex bool
}

// A Descriptor is an entry of a manifest. URLs are never set: they are not followed. Data is set
// only if it matches the digest.
type Descriptor struct {
	ocispec.Descriptor

	Name string // Ollama: the name of the tensor or file
}

// ParseManifest parses a manifest. It returns errdefs.ErrInvalidArgument, naming the layer, for an
// ambiguous or invalid one, and errdefs.ErrNotImplemented for a Docker manifest of schema 1 or a
// digest other than sha256.
func ParseManifest(p []byte) (*Manifest, error) {
	if len(p) > MaxManifestSize {
		return nil, fmt.Errorf("manifest of %d bytes, more than %d: %w", len(p), MaxManifestSize, errdefs.ErrInvalidArgument)
	}
	if t := bytes.TrimSpace(p); len(t) == 0 || t[0] != '{' {
		return nil, fmt.Errorf("%s: %w", notManifest(t), errdefs.ErrInvalidArgument)
	}
	o, err := parseObject(p, manifestKeys)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	m := &Manifest{
		Digest:       digest.FromBytes(p),
		MediaType:    o.String("mediaType"),
		ArtifactType: o.String("artifactType"),
		Annotations:  o.Map("annotations"),
	}
	if v, ok := o.Int("schemaVersion"); ok && v != 2 {
		return nil, fmt.Errorf("manifest of schema version %d: %w", v, errdefs.ErrNotImplemented)
	}
	if err := m.parseBody(o); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	if err := o.Err(); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	return m, nil
}

// notManifest describes a document that is not a JSON object.
func notManifest(p []byte) string {
	const look = 64
	head := strings.ToLower(string(p[:min(len(p), look)]))
	switch {
	case head == "":
		return "not a manifest: empty"
	case strings.HasPrefix(head, "<html"), strings.HasPrefix(head, "<!doctype html"):
		return "not a manifest: an HTML page"
	}
	return "not a manifest: not a JSON object"
}

func (m *Manifest) parseBody(o *Object) error {
	invalid := func(format string, args ...any) error {
		return fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...)
	}
	_, layers := o.fields["layers"]
	_, manifests := o.fields["manifests"]
	switch {
	case manifests && (layers || o.Has("config")):
		return invalid("both an index and an image")
	case !manifests && !layers && !o.Has("config"):
		return invalid("neither layers nor manifests: not a manifest")
	case mediatype.IsIndex(m.MediaType) && !manifests:
		return invalid("type %q without manifests", m.MediaType)
	case mediatype.IsManifest(m.MediaType) && manifests:
		return invalid("type %q with manifests", m.MediaType)
	}
	m.IsIndex = manifests
	if mediatype.IsVariants(m.MediaType) {
		return nil // its entries are no descriptors
	}
	var err error
	if manifests {
		m.Manifests, err = parseDescriptors(o, "manifests", "entry", maxChildren)
		return err
	}
	if cfg := o.Object("config"); cfg.String("digest") != "" {
		if m.Config, err = parseDescriptor(cfg); err != nil {
			return fmt.Errorf("config: %w", err)
		}
	}
	if m.Layers, err = parseDescriptors(o, "layers", "layer", maxLayers); err != nil {
		return err
	}
	return m.checkSizes()
}

func parseDescriptors(o *Object, key, what string, limit int) ([]Descriptor, error) {
	list := o.list(key)
	if len(list) > limit {
		return nil, fmt.Errorf("%d %s, more than %d: %w", len(list), key, limit, errdefs.ErrInvalidArgument)
	}
	var all []Descriptor
	for i, raw := range list { // one at a time: an Object takes six times the memory of its text
		d := o.element(key, i, raw)
		if d == nil {
			return nil, nil // o has the error
		}
		desc, err := parseDescriptor(d)
		if err != nil {
			return nil, fmt.Errorf("%s %d: %w", what, i, err)
		}
		all = append(all, desc)
	}
	return all, nil
}

func parseDescriptor(o *Object) (Descriptor, error) {
	d, err := verify.ParseDigest(o.String("digest"))
	if err != nil {
		return Descriptor{}, err
	}
	size, ok := o.Int("size")
	if !ok || size < 0 {
		return Descriptor{}, fmt.Errorf("%s: no size, or a negative one: %w", d, errdefs.ErrInvalidArgument)
	}
	if size > filetable.MaxModel {
		return Descriptor{}, fmt.Errorf("%s: size %d is more than %d: %w", d, size, int64(filetable.MaxModel), errdefs.ErrInvalidArgument)
	}
	desc := Descriptor{
		Descriptor: ocispec.Descriptor{
			MediaType:    o.String("mediaType"),
			Digest:       d,
			Size:         size,
			Annotations:  o.Map("annotations"),
			ArtifactType: o.String("artifactType"),
			Platform:     parsePlatform(o),
		},

		Name: o.String("name"),
	}
	// Without a type, the content of a descriptor is unknown.
	if desc.MediaType == "" {
		return Descriptor{}, fmt.Errorf("%s: no mediaType: %w", d, errdefs.ErrInvalidArgument)
	}
	if data := o.Bytes("data"); data != nil && int64(len(data)) == size && verify.Bytes(d, data) == nil {
		desc.Data = data
	}
	return desc, nil
}

func parsePlatform(o *Object) *ocispec.Platform {
	if !o.Has("platform") {
		return nil
	}
	p := o.Object("platform")
	return &ocispec.Platform{
		Architecture: p.String("architecture"),
		OS:           p.String("os"),
		OSVersion:    p.String("os.version"),
		OSFeatures:   p.Strings("os.features"),
		Variant:      p.String("variant"),
	}
}

// checkSizes checks that a digest has one size, and that the total size is at most filetable.MaxModel.
func (m *Manifest) checkSizes() error {
	sizes := map[digest.Digest]int64{m.Config.Digest: m.Config.Size}
	sum := m.Config.Size
	for i, l := range m.Layers {
		if size, ok := sizes[l.Digest]; ok && size != l.Size {
			return fmt.Errorf("layer %d: %s has sizes %d and %d: %w", i, l.Digest, size, l.Size, errdefs.ErrInvalidArgument)
		}
		sizes[l.Digest] = l.Size
		if l.Size > filetable.MaxModel-sum {
			return fmt.Errorf("layer %d: %s: sizes add up to more than %d bytes: %w", i, l.Digest, int64(filetable.MaxModel), errdefs.ErrInvalidArgument)
		}
		sum += l.Size
	}
	return nil
}

package ollama

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxListed limits the entries of a list.
const maxListed = 64

// Ollama's runners, which are programs that run a model.
const (
	RunnerLlamaCPP = "llamacpp"
	RunnerGGML     = "ggml"
	RunnerMLX      = "mlx"
)

// runners are the runners in the order of Ollama's preference on Linux.
var runners = []string{RunnerLlamaCPP, RunnerGGML, RunnerMLX}

// A List is a manifest list: one model in a variant for each runner.
type List struct {
	Digest   digest.Digest // of the list, byte for byte as served
	Bytes    []byte        // as served
	Children []Child       // in the order of the list
}

// A Child is an entry of a List.
type Child struct {
	// Digest is the digest of the child's manifest, which is a blob of the repository.
	Digest digest.Digest

	// Size is the size of the manifest in bytes, or -1: real lists do not have it.
	Size int64

	// Manifest is the manifest, if it is in the list.
	Manifest []byte

	// Runner is one of the runners; empty if the list has neither its name nor its format.
	Runner string
	Format string // such as "gguf"; may be empty
}

// ParseList parses a manifest list. It returns errdefs.ErrInvalidArgument, naming the entry, for an
// invalid list, and errdefs.ErrNotImplemented for an unknown runner and for a list in a list.
//
// An entry is a digest, without size, or a whole manifest. The digest of such a manifest is that
// of its JSON without spaces.
func ParseList(p []byte) (*List, error) {
	if len(p) > convert.MaxManifestSize {
		return nil, fmt.Errorf("manifest list of %d bytes, more than %d: %w", len(p), convert.MaxManifestSize, errdefs.ErrInvalidArgument)
	}
	o, err := convert.ParseObject(p)
	if err != nil {
		return nil, fmt.Errorf("manifest list: %w", err)
	}
	if t := o.String("mediaType"); mediatype.FormatOf(t) != mediatype.FormatOllamaList {
		return nil, fmt.Errorf("manifest of type %.100q is not a list: %w", t, errdefs.ErrInvalidArgument)
	}
	var entries []json.RawMessage
	if err := json.Unmarshal(o.Raw("manifests"), &entries); err != nil || len(entries) == 0 || len(entries) > maxListed {
		return nil, fmt.Errorf("manifest list with %d entries, not 1 to %d: %w", len(entries), maxListed, errdefs.ErrInvalidArgument)
	}
	l := &List{Digest: digest.FromBytes(p), Bytes: p}
	for i, raw := range entries {
		c, err := parseChild(raw)
		if err != nil {
			return nil, fmt.Errorf("manifest list %s: entry %d: %w", l.Digest, i, err)
		}
		l.Children = append(l.Children, c)
	}
	return l, nil
}

func parseChild(raw json.RawMessage) (Child, error) {
	o, err := convert.ParseObject(raw)
	if err != nil {
		return Child{}, err
	}
	if t := o.String("mediaType"); mediatype.FormatOf(t) == mediatype.FormatOllamaList || mediatype.IsIndex(t) || o.Has("manifests") {
		return Child{}, fmt.Errorf("a list in a list: %w", errdefs.ErrNotImplemented)
	}
	c := Child{Size: -1, Runner: strings.ToLower(o.String("runner")), Format: o.String("format")}
	if c.Runner != "" && !slices.Contains(runners, c.Runner) {
		return Child{}, fmt.Errorf("unknown runner %.100q: %w", c.Runner, errdefs.ErrNotImplemented)
	}
	if c.Runner == "" {
		c.Runner = runnerOf(c.Format)
	}
	inline := o.Has("layers") || o.Has("config")
	switch d := o.String("digest"); {
	case inline && d != "":
		return Child{}, fmt.Errorf("both a manifest and the digest of one: %w", errdefs.ErrInvalidArgument)
	case inline:
		var buf bytes.Buffer
		if err := json.Compact(&buf, raw); err != nil {
			return Child{}, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
		}
		c.Manifest, c.Size = buf.Bytes(), int64(buf.Len())
		c.Digest = digest.FromBytes(c.Manifest)
	default:
		if c.Digest, err = verify.ParseDigest(d); err != nil {
			return Child{}, err
		}
		if size, ok := o.Int("size"); ok {
			if size < 0 || size > convert.MaxManifestSize {
				return Child{}, fmt.Errorf("%s: size %d is not within 0 to %d: %w", c.Digest, size, convert.MaxManifestSize, errdefs.ErrInvalidArgument)
			}
			c.Size = size
		}
	}
	return c, o.Err()
}

// runnerOf returns the runner for models of a format, or "".
func runnerOf(format string) string {
	switch strings.ToLower(format) {
	case "safetensors":
		return RunnerMLX
	case "gguf", "ggml":
		return RunnerGGML
	}
	return ""
}

// Choose returns the child for a runner, ignoring case. For "" it is the first of llamacpp, ggml
// and mlx in the list; a child without a runner is chosen if it is the only one. Choose returns
// errdefs.ErrNotFound if the list has no such child, and errdefs.ErrInvalidArgument for a runner
// that is unknown or that two children have.
func Choose(l *List, runner string) (Child, error) {
	want := runners
	if runner != "" {
		runner = strings.ToLower(runner)
		if !slices.Contains(runners, runner) {
			return Child{}, fmt.Errorf("unknown runner %.100q, not one of %s: %w", runner, strings.Join(runners, ", "), errdefs.ErrInvalidArgument)
		}
		want = []string{runner}
	}
	for _, r := range want {
		var found []Child
		for _, c := range l.Children {
			if c.Runner == r && !slices.ContainsFunc(found, func(f Child) bool { return f.Digest == c.Digest }) {
				found = append(found, c)
			}
		}
		if len(found) > 1 {
			return Child{}, fmt.Errorf("manifest list %s has %d models for runner %q: %w", l.Digest, len(found), r, errdefs.ErrInvalidArgument)
		}
		if len(found) == 1 {
			return found[0], nil
		}
	}
	if runner == "" && len(l.Children) == 1 {
		return l.Children[0], nil
	}
	have := make([]string, len(l.Children))
	for i, c := range l.Children {
		have[i] = fmt.Sprintf("%q", c.Runner)
	}
	return Child{}, fmt.Errorf("manifest list %s has no model for runner %q, only for %s: %w", l.Digest, runner, strings.Join(have, ", "), errdefs.ErrNotFound)
}

// ParseManifest parses the manifest of the child, which was read as a blob. It returns a
// *verify.Error for bytes that do not match the digest in the list, and errdefs.ErrInvalidArgument
// for a manifest that contradicts the list.
func (c Child) ParseManifest(p []byte) (*convert.Manifest, error) {
	if err := verify.Bytes(c.Digest, p); err != nil {
		return nil, err
	}
	m, err := convert.ParseManifest(p)
	if err != nil {
		return nil, err
	}
	if m.IsIndex {
		return nil, fmt.Errorf("manifest %s: a list in a list: %w", c.Digest, errdefs.ErrNotImplemented)
	}
	if claim, _ := detect(m); claim == format.None { // without errors
		return nil, fmt.Errorf("manifest %s is not of format %q: %w", c.Digest, mediatype.FormatOllama, errdefs.ErrInvalidArgument)
	}
	o, err := convert.ParseObject(p)
	if err != nil {
		return nil, err
	}
	if r := o.String("runner"); r != "" && c.Runner != "" && !strings.EqualFold(r, c.Runner) {
		return nil, fmt.Errorf("manifest %s is for runner %.100q, its list says %q: %w", c.Digest, r, c.Runner, errdefs.ErrInvalidArgument)
	}
	return m, nil
}

// Origin returns the origin of the model of a child of a list. It differs from that of the same
// child without a list, since the list is kept with the model.
func Origin(l *List, c Child) filetable.Origin {
	name := string(mediatype.FormatOllamaList)
	if c.Runner != "" {
		name += "/" + c.Runner
	}
	return filetable.Origin{Format: name, Digest: l.Digest, Mapping: convert.MappingVersion}
}

// ParseChild parses the model of a child of a list. The blobs are those of a; p is the manifest of
// the child. The list is kept as ollama/list.json.
func ParseChild(ctx context.Context, a convert.Artifact, l *List, c Child, p []byte) (*convert.Model, error) {
	m, err := c.ParseManifest(p)
	if err != nil {
		return nil, fmt.Errorf("manifest list %s: %w", l.Digest, err)
	}
	model, err := parse(ctx, childArtifact{a, p}, m, l)
	if err != nil {
		return nil, fmt.Errorf("manifest list %s: manifest %s: %w", l.Digest, c.Digest, err)
	}
	model.Table.Origin = Origin(l, c)
	model.Config.Descriptor.Revision = c.Digest.String()
	model.Documents.Manifest, model.Documents.Child = l.Bytes, p
	return model, nil
}

// readChild returns the manifest of a child: it is in the list, or a blob, whose digest is
// verified.
func readChild(ctx context.Context, a convert.Artifact, c Child) ([]byte, error) {
	if c.Manifest != nil {
		return c.Manifest, nil
	}
	if c.Size >= 0 {
		return a.ReadBlob(ctx, ocispec.Descriptor{Digest: c.Digest, Size: c.Size}, convert.MaxManifestSize)
	}
	r, ok := a.(interface {
		ReadSmall(ctx context.Context, d digest.Digest, limit int64) ([]byte, error)
	})
	if !ok {
		return nil, fmt.Errorf("manifest %s: the list does not say its size: %w", c.Digest, errdefs.ErrNotImplemented)
	}
	return r.ReadSmall(ctx, c.Digest, convert.MaxManifestSize)
}

// parseChosen reads the manifest of a child and parses it; see ParseChild. If the list does not
// have its size, a must have a method ReadSmall, like remote.Artifact; otherwise
// errdefs.ErrNotImplemented is returned.
func parseChosen(ctx context.Context, a convert.Artifact, l *List, c Child) (*convert.Model, error) {
	p, err := readChild(ctx, a, c)
	if err != nil {
		return nil, fmt.Errorf("manifest list %s: %w", l.Digest, err)
	}
	return ParseChild(ctx, a, l, c, p)
}

// A childArtifact has the blobs of an artifact, and another manifest.
type childArtifact struct {
	convert.Artifact
	manifest []byte
}

func (a childArtifact) Manifest() []byte { return a.manifest }

package format

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/containerd/errdefs"
)

// A List is a list of formats. If several match, the first one is used.
type List []*Format

// A Claim is how a manifest shows that it has a format. The largest one is used.
type Claim int

// The claims.
const (
	None           Claim = iota
	Wanted               // the format is possible on request only: Detect does not return it
	ByFile               // a layer is a file of the format
	ByLayer              // the type of a layer; old registries drop the artifactType
	ByConfig             // the type of the config
	ByManifest           // the media type of the manifest
	ByArtifactType       // the artifactType
	Certain              // a property that no other format has
)

// ByTypes returns the claim of a manifest by its media types. It returns errdefs.ErrNotImplemented
// for an unknown version.
func ByTypes(m *convert.Manifest, f mediatype.Format) (Claim, error) {
	if m.IsIndex {
		return None, nil
	}
	for _, by := range []struct {
		claim     Claim
		mediaType string
	}{{ByArtifactType, m.ArtifactType}, {ByManifest, m.MediaType}, {ByConfig, m.Config.MediaType}} {
		if mediatype.FormatOf(by.mediaType) == f {
			_, err := mediatype.Parse(by.mediaType)
			return by.claim, err
		}
	}
	if HasLayer(m, f) {
		return ByLayer, nil
	}
	return None, nil
}

// Types returns a Detect that uses only media types.
func Types(f mediatype.Format) func(*convert.Manifest) (Claim, error) {
	return func(m *convert.Manifest) (Claim, error) { return ByTypes(m, f) }
}

// HasLayer reports whether a layer of m has a type of a format.
func HasLayer(m *convert.Manifest, f mediatype.Format) bool {
	return slices.ContainsFunc(m.Layers, func(l convert.Descriptor) bool {
		return mediatype.FormatOf(l.MediaType) == f || mediatype.FormatOf(l.ArtifactType) == f
	})
}

// Detect returns the format of a manifest; FormatIndex for any index, and FormatImage for a
// manifest that is not a model, such as a converted image. It returns errdefs.ErrNotImplemented for
// a model of an unknown version.
func (l List) Detect(m *convert.Manifest) (mediatype.Format, error) {
	f, err := l.detect(m, Wanted+1)
	switch {
	case f != "" || err != nil:
		return f, err
	case m.IsIndex:
		return mediatype.FormatIndex, nil
	}
	return mediatype.FormatImage, nil
}

// Wanted returns the format of a manifest that passes unchanged, if it is treated as a model on
// request; "" if it cannot be one.
func (l List) Wanted(m *convert.Manifest) mediatype.Format {
	f, _ := l.detect(m, Wanted) // a manifest with an error is something else
	return f
}

// detect returns the format with the largest claim, if it is at least least.
func (l List) detect(m *convert.Manifest, least Claim) (name mediatype.Format, fault error) {
	if slices.ContainsFunc(m.Layers, func(l convert.Descriptor) bool { return l.MediaType == mediatype.TableLayer }) {
		return "", nil
	}
	best := least - 1
	for _, f := range l {
		if f.Detect == nil {
			continue
		}
		if c, err := f.Detect(m); c > best {
			best, name, fault = c, f.Name, err
		}
	}
	if fault != nil {
		return "", fault
	}
	return name, nil
}

// Get returns the format of an origin (filetable.Origin.Format), or one without a name: the value
// comes from outside and can be anything.
func (l List) Get(origin string) *Format {
	name, _, _ := strings.Cut(origin, "/")
	for _, f := range l {
		if name != "" && string(f.Name) == name {
			return f
		}
	}
	return &Format{}
}

// Limits returns the names of all limits.
func (l List) Limits() (names []string) {
	for _, f := range l {
		names = append(names, f.Limits...)
	}
	return names
}

// OfURL returns the format of an archive at a URL, and the URL, from a name. Without the scheme of
// a format, an http or https URL has the first format with archives.
func (l List) OfURL(name string) (f *Format, address string) {
	plain := strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://")
	for _, f := range l {
		if f.Archives == nil {
			continue
		}
		if address, ok := strings.CutPrefix(name, string(f.Name)+"+"); ok || plain {
			return f, address
		}
	}
	return nil, ""
}

// OfPage returns the reference of the model that a page of a web site shows, or "" for any other
// name. A name without the scheme of a URL is only a page if it cannot be a reference there.
func (l List) OfPage(name string) (ref string, err error) {
	rest, plain := strings.CutPrefix(name, "https://")
	if !plain {
		rest, plain = strings.CutPrefix(name, "http://")
	}
	u, err := url.Parse("https://" + rest)
	if err != nil || u.User != nil {
		return "", nil
	}
	path := strings.Split(strings.Trim(u.Path, "/"), "/")
	if !plain && len(path) <= 2 {
		return "", nil
	}
	for _, f := range l {
		switch {
		case f.Writer != nil && strings.HasSuffix(u.Path, f.Writer.Extension): // an archive at a URL
			return "", nil
		case f.Page == nil:
			continue
		}
		if ref, err = f.Page(strings.TrimPrefix(strings.ToLower(u.Host), "www."), path); ref != "" || err != nil {
			return ref, err
		}
	}
	return "", nil
}

// Variants returns the names of all variants.
func (l List) Variants() (names []string) {
	for _, f := range l {
		if f.Variants != nil {
			names = append(names, f.Variants.Names...)
		}
	}
	return names
}

// CutVariant cuts the name of a variant from the end of a tag: "27b-mlx" is "27b" and "mlx". The
// variant is empty if there is none.
func (l List) CutVariant(tag string) (rest, variant string) {
	for _, v := range l.Variants() {
		if rest, ok := strings.CutSuffix(tag, "-"+v); ok && rest != "" {
			return rest, v
		}
	}
	return tag, ""
}

// Parse detects the format of an artifact and parses it, without settings, using the preferred one
// of several variants. It returns convert.ErrNotModel for an artifact that is not a model, and the
// errors of ParseAs.
func (l List) Parse(ctx context.Context, a convert.Artifact) (*convert.Model, error) {
	m, err := convert.ParseManifest(a.Manifest())
	if err != nil {
		return nil, err
	}
	name, err := l.Detect(m)
	if err != nil {
		return nil, err
	}
	if name == mediatype.FormatImage || name == mediatype.FormatIndex {
		return nil, fmt.Errorf("manifest %s: %s: %w", m.Digest, name, convert.ErrNotModel)
	}
	if f := l.Get(string(name)); f.Variants != nil {
		c, err := f.Variants.Choose(a.Manifest(), "")
		if err != nil {
			return nil, err
		}
		return c.Parse(ctx, a)
	}
	return l.ParseAs(ctx, Settings{}, name, a, m)
}

// ParseAs parses an artifact of a format; m is its manifest. It returns errdefs.ErrNotImplemented, naming the format,
// for a model that is not supported, and errdefs.ErrInvalidArgument for one that breaks a rule.
func (l List) ParseAs(ctx context.Context, s Settings, name mediatype.Format, a convert.Artifact, m *convert.Manifest) (*convert.Model, error) {
	f := l.Get(string(name))
	if f.Parse == nil {
		return nil, fmt.Errorf("models of format %q are not supported: %w", name, errdefs.ErrNotImplemented)
	}
	model, err := f.Parse(ctx, s, a, m)
	if err != nil {
		return nil, fmt.Errorf("%s model: %w", name, err)
	}
	return model, nil
}

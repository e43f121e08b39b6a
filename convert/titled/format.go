package titled

import (
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/losses"
	"github.com/ballast-dev/ballast/convert/mediatype"
)

// Format is the format of artifacts whose layers have titles.
var Format = format.Format{
	Name: mediatype.FormatTitled, Detect: detect, Parse: parse,
	Losses: losses.Rules{Annotations: losses.Places("annotations.",
		mediatype.AnnotationCreated, mediatype.AnnotationTitle, mediatype.AnnotationDescription, mediatype.AnnotationLicenses)},
}

// detect reports whether m is an artifact whose layers all have titles. A manifest with the config
// of an image, or without a config, is not such an artifact, and neither is one with image layers
// and without an artifact type: "oras push" gives files the type of such layers.
func detect(m *convert.Manifest) (format.Claim, error) {
	isArtifact := m.ArtifactType != "" || mediatype.Base(m.Config.MediaType) == mediatype.OrasConfig
	for _, l := range m.Layers {
		if l.Annotations[mediatype.AnnotationTitle] == "" || mediatype.IsImageLayer(l.MediaType) && !isArtifact {
			return format.None, nil
		}
	}
	if m.IsIndex || len(m.Layers) == 0 || mediatype.Base(m.MediaType) == mediatype.DockerManifest ||
		m.Config.Digest == "" || mediatype.IsImageConfig(m.Config.MediaType) {
		return format.None, nil
	}
	return format.Wanted, nil
}

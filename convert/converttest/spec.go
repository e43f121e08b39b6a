package converttest

import (
	"cmp"

	"github.com/ballast-dev/ballast/convert/mediatype"
)

// A Spec describes an artifact that no builder makes, such as an invalid or unusual one.
type Spec struct {
	MediaType    string // of the manifest; empty means the OCI manifest
	ArtifactType string
	Annotations  map[string]string
	ConfigType   string
	Config       string // the config; none if ConfigType is empty
	Layers       []Layer
}

// A Layer is a layer of a Spec.
type Layer struct {
	MediaType    string
	ArtifactType string
	Data         string
	Annotations  map[string]string
}

// At returns the annotations of a layer with the path of a file.
func At(path string) map[string]string {
	return map[string]string{mediatype.AnnotationFilepath: path}
}

// Make makes the artifact of a Spec. Its Files are empty.
func Make(s Spec) *Built {
	b := newBuilder("", "", cmp.Or(s.MediaType, mediatype.OCIManifest))
	b.manifest.ArtifactType = s.ArtifactType
	b.manifest.Annotations = s.Annotations
	for _, l := range s.Layers {
		b.layer(l.MediaType, []byte(l.Data), l.Annotations).ArtifactType = l.ArtifactType
	}
	if s.ConfigType != "" {
		b.config(s.ConfigType, []byte(s.Config))
	}
	return b.done()
}

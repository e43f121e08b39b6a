package convert_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/mediatype"
)

// TestDetectOrder has manifests that two of the questions of Detect have an answer to, and
// those that only the last have.
func TestDetectOrder(t *testing.T) {
	t.Parallel()
	const (
		ociConfig = "application/vnd.oci.image.config.v1+json"
		ociLayer  = "application/vnd.oci.image.layer.v1.tar"
		docker    = "application/vnd.docker.distribution.manifest.v2+json"
		dockerCfg = "application/vnd.docker.container.image.v1+json"
		list      = "application/vnd.ollama.manifest.list.v2+json"
		modelPack = "application/vnd.cncf.model."
		cnai      = "application/vnd.cnai.model."
		dockerAI  = "application/vnd.docker.ai."
		ollama    = "application/vnd.ollama.image."
		kitOps    = "application/vnd.kitops.modelkit."
		oci       = "application/vnd.oci.image.manifest.v1+json"
	)
	doc := func(mediaType, artifactType, config string, layers ...string) string {
		return fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"artifactType":%q,"config":%s,"layers":[%s]}`,
			mediaType, artifactType, desc(config, digestA, 1), strings.Join(layers, ","))
	}
	layer := func(mediaType string, more ...string) string { return desc(mediaType, digestB, 1, more...) }
	for _, tt := range []struct {
		name, manifest string
		want           mediatype.Format
	}{
		{"ollama list by media type, though its entries say they are models",
			fmt.Sprintf(`{"mediaType":%q,"artifactType":%q,"manifests":[]}`, list, modelPack+"manifest.v1+json"), mediatype.FormatOllamaList},
		{"layers of Ollama before the artifact type of ModelPack", doc(oci, modelPack+"manifest.v1+json", modelPack+"config.v1+json", layer(ollama+"model")), mediatype.FormatOllama},
		{"layers of Ollama before the config of Docker AI", doc(oci, "", dockerAI+"model.config.v0.1+json", layer(ollama+"model")), mediatype.FormatOllama},
		{"layers of Ollama behind those of an image", doc(docker, "", dockerCfg, layer(ociLayer), desc(ollama+"license", digestC, 1)), mediatype.FormatOllama},
		{"a Docker manifest without layers may be an Ollama cloud stub", doc(docker, "", dockerCfg), mediatype.FormatOllama},
		{"an OCI manifest without layers is an image", doc(oci, "", ociConfig), mediatype.FormatImage},
		{"the artifact type before the config", doc(oci, modelPack+"manifest.v1+json", cnai+"config.v1+json", layer(cnai+"weight.v1.raw")), mediatype.FormatModelPack},
		{"the media type of the manifest in the place of an artifact type", doc(modelPack+"manifest.v1+json", "", ociConfig, layer(modelPack+"weight.v1.raw")), mediatype.FormatModelPack},
		{"the config of ModelPack before layers of CNAI", doc(oci, "", modelPack+"config.v1+json", layer(cnai+"weight.v1.raw")), mediatype.FormatModelPack},
		{"the config of CNAI alone", doc(oci, "", cnai+"config.v1+json"), mediatype.FormatCNAI},
		{"the config of Docker AI alone", doc(oci, "", dockerAI+"model.config.v0.2+json"), mediatype.FormatDockerAI},
		{"a layer of CNAI, the artifact type being lost", doc(oci, "", ociConfig, layer(cnai+"weight.v1.raw")), mediatype.FormatCNAI},
		{"a layer of Docker AI, the type of the config being lost", doc(oci, "", ociConfig, layer(dockerAI+"gguf.v3")), mediatype.FormatDockerAI},
		{"the artifact type of a layer of ModelPack", doc(oci, "", ociConfig, layer(ociLayer, `,"artifactType":"`+modelPack+`weight.v1.tar"`)), mediatype.FormatModelPack},
		{"early CNAI before an ordinary image", doc(oci, "", ociConfig, layer(ociLayer, `,"artifactType":"`+cnai+`layer.v1.tar"`)), mediatype.FormatCNAIEarly},
		{"early CNAI by its artifact type, its layers those of an image", doc(oci, cnai+"manifest.v1+json", ociConfig, layer(ociLayer)), mediatype.FormatCNAIEarly},
		{"early CNAI with the media type of the manifest", doc(cnai+"manifest.v1+json", "", ociConfig, layer(ociLayer)), mediatype.FormatCNAIEarly},
		{"a config that says model over the layers of an image", doc(oci, "", modelPack+"config.v1+json", layer(ociLayer)), mediatype.FormatModelPack},
		{"a manifest that says image over the layers of a model", doc(oci, "application/vnd.oci.image.config.v1+json", ociConfig, layer(modelPack+"weight.v1.raw")), mediatype.FormatModelPack},
		{"KitOps by its config", doc(oci, "", kitOps+"config.v1+json", layer(kitOps+"model.v1.tar")), mediatype.FormatKitOps},
		{"KitOps by a layer", doc(oci, "", ociConfig, layer(kitOps+"model.v1.tar")), mediatype.FormatKitOps},
		{"Cog by its artifact type, its layers those of an image", doc(oci, "application/vnd.cog.weight.v1", "application/vnd.cog.weight.config.v1+json", layer(ociLayer)), mediatype.FormatCog},
		{"a carton by the extension of its only layer", doc(oci, "", ociConfig, layer("application/octet-stream", `,"annotations":{"org.opencontainers.image.title":"A.CARTON"}`)), mediatype.FormatCarton},
		{"a carton inside of ModelPack is a file", doc(oci, modelPack+"manifest.v1+json", modelPack+"config.v1+json",
			layer(modelPack+"weight.v1.raw", `,"annotations":{"org.cncf.model.filepath":"a.carton"}`)), mediatype.FormatModelPack},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m, err := convert.ParseManifest([]byte(tt.manifest))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := formats.All().Detect(m); err != nil || got != tt.want {
				t.Errorf("got %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

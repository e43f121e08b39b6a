package ollama

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/losses"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/ollama/localstore"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
)

// The formats of Ollama: a model, and a list with one for each runner.
var (
	Format = format.Format{Name: mediatype.FormatOllama, Detect: detect, Parse: parseModel, Losses: rules, Place: &localstore.Place, Hosts: hosts, Page: page}
	Lists  = format.Format{
		Name: mediatype.FormatOllamaList, Detect: detectList, Losses: rules,
		Variants: &format.Variants{Names: runners, Choose: choose},
	}
)

// hosts returns the registry of Ollama (hostname.Normal). It refuses models to clients that are too old, and gets
// requests like those of Ollama's own client, so that it serves the list of runners where there is
// one.
func hosts(format.Settings) (format.Hosts, error) {
	return format.Hosts{Names: []string{registryHost}, Manner: remote.Manner{
		UserAgent: "ollama/0.40.0", Accept: mediatype.OllamaManifestList + ", " + mediatype.DockerManifest,
	}}, nil
}

// page returns the reference of https://ollama.com/library/NAME[:TAG], or USER/NAME[:TAG].
func page(host string, path []string) (string, error) {
	switch {
	case host != publicHost && host != registryHost:
		return "", nil
	case len(path) != 2:
		return "", fmt.Errorf("a page that is not that of a model; write %s/library/NAME:TAG or %s/USER/NAME:TAG: %w", publicHost, publicHost, errdefs.ErrInvalidArgument)
	}
	return registryHost + "/" + path[0] + "/" + path[1], nil
}

// The hosts of the web site and of the registry.
const (
	publicHost   = "ollama.com"
	registryHost = "registry.ollama.ai"
)

// detect looks for types of layers that only Ollama has. A cloud model has no layers; its config
// has the type of any image, and is read by parse.
func detect(m *convert.Manifest) (format.Claim, error) {
	stub := len(m.Layers) == 0 && mediatype.Base(m.MediaType) == mediatype.DockerManifest &&
		mediatype.Base(m.Config.MediaType) == mediatype.DockerConfig
	if stub || format.HasLayer(m, mediatype.FormatOllama) {
		return format.Certain, nil
	}
	return format.None, nil
}

func detectList(m *convert.Manifest) (format.Claim, error) {
	if mediatype.FormatOf(m.MediaType) == mediatype.FormatOllamaList {
		return format.Certain, nil
	}
	return format.None, nil
}

func choose(manifest []byte, runner string) (*format.Choice, error) {
	l, err := ParseList(manifest)
	if err != nil {
		return nil, err
	}
	c, err := Choose(l, runner)
	if err != nil {
		return nil, err
	}
	return &format.Choice{Origin: Origin(l, c), Parse: func(ctx context.Context, a convert.Artifact) (*convert.Model, error) {
		return parseChosen(ctx, a, l, c)
	}}, nil
}

// known are the capabilities that have a place.
var known = []string{"completion", "vision", "audio", "image", "embedding", "tools", "thinking"}

var rules = losses.Rules{
	Keys: losses.Union(
		losses.Places("", "model_format", "model_family", "model_type", "file_type", "capabilities"),
		map[string]string{"context_length": losses.ContextAnnotation},
	),
	Words: map[string]func(string) string{
		"model_type": convert.ParamSize,
		"capabilities": func(s string) string {
			if slices.Contains(known, s) {
				return s
			}
			return ""
		},
	},
	Manifest: "file ollama/manifest.json",
	Config:   "file ollama/config.json",
	More:     unused,
}

// unused returns the layers that are not files.
func unused(m *convert.Manifest) (list []losses.Loss) {
	count := map[mediatype.Part]int{}
	ignored, templates := map[string]int{}, map[string]int{}
	for _, l := range m.Layers {
		t, err := mediatype.Parse(l.MediaType)
		if err != nil || t.Format != mediatype.FormatOllama {
			ignored[mediatype.Base(l.MediaType)]++
			continue
		}
		count[t.Part]++
		if params, err := mediatype.Params(l.MediaType); err == nil && t.Part == mediatype.PartTemplate {
			templates[params["name"]]++
		}
	}
	count[mediatype.PartTemplate] -= max(len(templates)-1, 0) // one per name is used
	for _, base := range slices.Sorted(maps.Keys(ignored)) {
		list = append(list, losses.Loss{What: fmt.Sprintf("content of %s of type %s, which Ollama ignores", losses.Layers(ignored[base]), losses.Cut(base))})
	}
	if n := count[mediatype.PartEmbed]; n > 0 {
		list = append(list, losses.Loss{What: "content of " + losses.Layers(n) + " of embeddings, which Ollama does not use"})
	}
	for _, part := range []mediatype.Part{mediatype.PartDraft, mediatype.PartTemplate, mediatype.PartSystem, mediatype.PartMessages} {
		if n := count[part] - 1; n > 0 {
			list = append(list, losses.Loss{What: fmt.Sprintf("content of %s of %s, of which Ollama uses only the last", losses.Layers(n), part)})
		}
	}
	if count[mediatype.PartTensor] > 0 {
		list = append(list, losses.Loss{What: "headers of the tensor blobs", Kept: "files ollama/headers.bin, ollama/headers.json"})
	}
	if count[mediatype.PartParams] > 1 {
		list = append(list, losses.Loss{What: "individual parameter layers, which are merged"})
	}
	return list
}

package ollama

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/containerd/errdefs"
)

// addConfig adds the config layer, of which there can be one, and records its type. Only a config
// for safetensors, or without type, is a config.json.
func (p *parser) addConfig(layers []int) error {
	for n, i := range layers {
		params, err := mediatype.Params(p.manifest.Layers[i].MediaType)
		if err != nil {
			return p.layerError(i, err)
		}
		kind := strings.ToLower(params["type"])
		if n > 0 && (kind != p.configType || p.manifest.Layers[i].Digest != p.manifest.Layers[layers[0]].Digest) {
			return fmt.Errorf("layers %d and %d: two configs: %w", layers[0], i, errdefs.ErrInvalidArgument)
		}
		p.configType = kind
		path := "config.json"
		if kind != "" && !isSafetensors(kind) {
			path = "config-" + url.PathEscape(kind)
		}
		if err := p.addFile(i, path); err != nil {
			return err
		}
	}
	return nil
}

// isSafetensors reports whether the type of a config is safetensors; the specification has both
// spellings.
func isSafetensors(kind string) bool { return kind == "safetensors" || kind == "safetensor" }

// addTemplates adds the template of the model, which has no name, and the named templates, for
// which a Modelfile has no command. Of several with the same name, the last one is used.
func (p *parser) addTemplates(ctx context.Context, mf *modelfile, layers []int) error {
	last := map[string]int{}
	for _, i := range layers {
		params, err := mediatype.Params(p.manifest.Layers[i].MediaType)
		if err != nil {
			return p.layerError(i, err)
		}
		last[params["name"]] = i
	}
	for _, name := range slices.Sorted(maps.Keys(last)) {
		if name == "" {
			if err := p.addText(ctx, mf, "TEMPLATE", "template", []int{last[name]}); err != nil {
				return err
			}
			continue
		}
		path := "template-" + url.PathEscape(name)
		if err := p.addFile(last[name], path); err != nil {
			return err
		}
		mf.leftOut("TEMPLATE", path)
	}
	return nil
}

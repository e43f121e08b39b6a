package ollama

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/safetensors"
	"github.com/containerd/errdefs"
)

// maxText limits the text layers in the Modelfile, in bytes.
const maxText = 1 << 20 // 1 MiB

// parseModel parses an Ollama model.
func parseModel(ctx context.Context, _ format.Settings, a convert.Artifact, m *convert.Manifest) (*convert.Model, error) {
	return parse(ctx, a, m, nil)
}

// parse parses a model, which may be a child of a list.
func parse(ctx context.Context, a convert.Artifact, m *convert.Manifest, list *List) (*convert.Model, error) {
	p := parser{artifact: a, manifest: m, builder: convert.NewBuilder(m, mediatype.FormatOllama)}
	if err := p.readConfig(ctx); err != nil {
		return nil, err
	}
	layers := p.sort()
	if p.config.String("remote_host") != "" && len(layers[mediatype.PartModel])+len(layers[mediatype.PartTensor]) == 0 {
		return nil, fmt.Errorf("a cloud model that runs on %q: it has no weights to mount: %w", p.config.String("remote_host"), errdefs.ErrNotImplemented)
	}
	if len(m.Layers) == 0 && !p.config.Has("model_format") {
		return nil, fmt.Errorf("manifest %s: an image without layers: %w", m.Digest, convert.ErrNotModel)
	}
	if len(layers[mediatype.PartModel])+len(layers[mediatype.PartTensor]) == 0 {
		return nil, fmt.Errorf("no layer with a model: %w", errdefs.ErrInvalidArgument)
	}
	mf, err := p.addLayers(ctx, layers)
	if err != nil {
		return nil, err
	}
	p.builder.Generate("Modelfile", mf.bytes())
	p.builder.Generate("ollama/manifest.json", a.Manifest())
	if list != nil {
		p.builder.Generate("ollama/list.json", list.Bytes)
	}
	if p.configBytes != nil {
		p.builder.Generate("ollama/config.json", p.configBytes)
	}
	p.builder.KeepConfig(p.configBytes)
	model, err := p.builder.Model(ctx, a, convert.MergeConfig(p.modelConfig(), safetensors.Describe(p.summaries, safetensors.ModelConfig{})))
	if err != nil {
		return nil, err
	}
	if n, ok := p.config.Int("context_length"); ok && n > 0 {
		model.ContextLength = n
	}
	return model, nil
}

type parser struct {
	artifact    convert.Artifact
	manifest    *convert.Manifest
	builder     *convert.Builder
	config      *convert.Object
	configBytes []byte // nil if there is none
	configType  string // of the config layer, empty if it has none
	summaries   []safetensors.Summary
}

// readConfig reads the config. Ollama itself tolerates a missing one.
func (p *parser) readConfig(ctx context.Context) error {
	var err error
	if p.manifest.Config.Digest == "" {
		p.config, err = convert.ParseObject([]byte("{}"))
		return err
	}
	p.configBytes, err = convert.ReadBlob(ctx, p.artifact, p.manifest.Config, convert.MaxConfigSize)
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	if p.config, err = convert.ParseObject(p.configBytes); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	return nil
}

// sort returns the indexes of the layers by part, in the order of the manifest. Layers unknown to
// Ollama are ignored, as Ollama does: other prefixes, and manifests, which Ollama protects in this
// way.
func (p *parser) sort() map[mediatype.Part][]int {
	layers := map[mediatype.Part][]int{}
	for i, l := range p.manifest.Layers {
		if t, err := mediatype.Parse(l.MediaType); err == nil && t.Format == mediatype.FormatOllama {
			layers[t.Part] = append(layers[t.Part], i)
		}
	}
	return layers
}

func (p *parser) layerError(i int, err error) error {
	return fmt.Errorf("layer %d (%s): %w", i, p.manifest.Layers[i].Digest, err)
}

// addLayers adds the files of all layers and returns their Modelfile.
func (p *parser) addLayers(ctx context.Context, layers map[mediatype.Part][]int) (*modelfile, error) {
	mf := newModelfile()
	files := func(command string, part mediatype.Part, name func(i, of int) string) error {
		for n, i := range layers[part] {
			path := name(n+1, len(layers[part]))
			if err := p.addFile(i, path); err != nil {
				return err
			}
			if command != "" {
				mf.line(command, "./"+path)
			}
		}
		return nil
	}
	for _, part := range []mediatype.Part{mediatype.PartDraft, mediatype.PartSystem, mediatype.PartMessages} {
		if n := len(layers[part]); n > 1 {
			layers[part] = layers[part][n-1:]
		}
	}
	steps := []func() error{
		func() error { return files("FROM", mediatype.PartModel, modelName) },
		func() error { return p.addConfig(layers[mediatype.PartConfig]) },
		func() error { return p.addTensors(ctx, mf, layers) },
		func() error { return files("", mediatype.PartTokenizer, always("tokenizer.json")) },
		func() error { return files("", mediatype.PartTokenizerConfig, always("tokenizer_config.json")) },
		func() error { return p.addByName(layers[mediatype.PartJSON]) },
		func() error { return files("ADAPTER", mediatype.PartAdapter, numbered("adapter", ".gguf")) },
		func() error { return files("DRAFT", mediatype.PartDraft, numbered("draft", ".gguf")) },
		func() error { return files("FROM", mediatype.PartProjector, numbered("mmproj", ".gguf")) },
		func() error { return p.addTemplates(ctx, mf, layers[mediatype.PartTemplate]) },
		func() error { return p.addText(ctx, mf, "SYSTEM", "system", layers[mediatype.PartSystem]) },
		func() error { mf.text("RENDERER", "ollama/config.json", p.config.String("renderer")); return nil },
		func() error { mf.text("PARSER", "ollama/config.json", p.config.String("parser")); return nil },
		func() error { return p.addParams(ctx, mf, layers[mediatype.PartParams]) },
		func() error { return p.addText(ctx, mf, "LICENSE", "LICENSE", layers[mediatype.PartLicense]) },
		func() error { return p.addMessages(ctx, mf, layers[mediatype.PartMessages]) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return mf, nil
}

func modelName(i, of int) string { return convert.WeightsName(i, of, "gguf") }

// numbered names the first file name.ext, the second name-2.ext, and so on.
func numbered(name, ext string) func(i, of int) string {
	return func(i, _ int) string { return convert.NumberedName(name, i, ext) }
}

// always gives all layers the same name: there can be only one, or the same one several times.
func always(name string) func(i, of int) string {
	return func(int, int) string { return name }
}

// addByName adds layers whose paths are in the manifest.
func (p *parser) addByName(layers []int) error {
	for _, i := range layers {
		if err := p.addFile(i, p.manifest.Layers[i].Name); err != nil {
			return err
		}
	}
	return nil
}

// addFile adds layer i as a file.
func (p *parser) addFile(i int, path string) error {
	t, err := mediatype.Parse(p.manifest.Layers[i].MediaType)
	if err != nil {
		return err
	}
	return p.builder.Add(i, convert.Place{Kind: t.Kind, Path: path})
}

// readText reads layer i; ok is false if it is too large for the Modelfile.
func (p *parser) readText(ctx context.Context, i int) (text []byte, ok bool, err error) {
	l := p.manifest.Layers[i]
	if l.Size > maxText {
		return nil, false, nil
	}
	b, err := convert.ReadBlob(ctx, p.artifact, l, maxText)
	if err != nil {
		return nil, false, p.layerError(i, err)
	}
	return b, true, nil
}

// addText adds text layers, as files and as commands.
func (p *parser) addText(ctx context.Context, mf *modelfile, command, name string, layers []int) error {
	for n, i := range layers {
		path := convert.NumberedName(name, n+1, "")
		if err := p.addFile(i, path); err != nil {
			return err
		}
		text, ok, err := p.readText(ctx, i)
		if err != nil {
			return err
		}
		if !ok {
			mf.leftOut(command, path)
			continue
		}
		mf.text(command, path, string(text))
	}
	return nil
}

// addParams adds the parameters: a single layer unchanged, several merged.
func (p *parser) addParams(ctx context.Context, mf *modelfile, layers []int) error {
	const path = "params.json"
	if len(layers) == 0 {
		return nil
	}
	merged := map[string]json.RawMessage{}
	for _, i := range layers {
		text, ok, err := p.readText(ctx, i)
		if err != nil {
			return err
		}
		var o *convert.Object
		if ok {
			if o, err = convert.ParseObject(text); err != nil {
				ok = false
			}
		}
		if !ok {
			if len(layers) > 1 {
				return fmt.Errorf("layer %d (%s): one of %d layers of parameters is larger than %d bytes or no JSON object, so they cannot be merged: %w",
					i, p.manifest.Layers[i].Digest, len(layers), maxText, errdefs.ErrInvalidArgument)
			}
			mf.leftOut("PARAMETER", path)
			return p.addFile(i, path)
		}
		for _, k := range o.Keys() {
			if raw := o.Raw(k); raw != nil {
				merged[k] = raw
			}
		}
	}
	mf.params(path, merged)
	if len(layers) == 1 {
		return p.addFile(layers[0], path)
	}
	content, err := json.Marshal(merged) // sorted by key
	if err != nil {
		return fmt.Errorf("merge parameters: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	p.builder.Generate(path, content)
	return nil
}

// addMessages adds the messages.
func (p *parser) addMessages(ctx context.Context, mf *modelfile, layers []int) error {
	const path = "messages.json"
	for _, i := range layers {
		if err := p.addFile(i, path); err != nil {
			return err
		}
		text, ok, err := p.readText(ctx, i)
		if err != nil {
			return err
		}
		if !ok || !mf.messages(path, text) {
			mf.leftOut("MESSAGE", path)
		}
	}
	return nil
}

// modelConfig returns the facts about the model in ModelPack's terms. The architecture is left
// empty: a family is not always the architecture in the header of the weights.
func (p *parser) modelConfig() convert.Config {
	o := p.config
	c := convert.Config{
		Descriptor: convert.ModelDescriptor{Family: o.String("model_family")},
		Config: convert.ModelConfig{
			Format:    o.String("model_format"),
			ParamSize: convert.ParamSize(o.String("model_type")),
		},
	}
	switch t := o.String("file_type"); t {
	case "", "unknown":
	case "F32":
		c.Config.Precision = "float32"
	case "F16":
		c.Config.Precision = "float16"
	case "BF16":
		c.Config.Precision = "bfloat16"
	default:
		c.Config.Quantization = t
	}
	c.Config.Capabilities = capabilities(o.Strings("capabilities"))
	return c
}

func capabilities(names []string) *convert.Capabilities {
	if len(names) == 0 {
		return nil
	}
	has := func(name string) bool { return slices.Contains(names, name) }
	yes := true
	var c convert.Capabilities
	if has("completion") {
		c.InputTypes = append(c.InputTypes, "text")
		c.OutputTypes = append(c.OutputTypes, "text")
	}
	if has("vision") {
		c.InputTypes = append(c.InputTypes, "image")
	}
	if has("audio") {
		c.InputTypes = append(c.InputTypes, "audio")
	}
	if has("image") {
		c.OutputTypes = append(c.OutputTypes, "image")
	}
	if has("embedding") {
		c.OutputTypes = append(c.OutputTypes, "embedding")
	}
	if has("tools") {
		c.ToolUsage = &yes
	}
	if has("thinking") {
		c.Reasoning = &yes
	}
	return &c
}

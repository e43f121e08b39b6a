// Package dockerai parses the models of Docker Model Runner.
//
// A layer is one file, or an archive that its type names; no layer is compressed, so the
// diffIDs of the config say nothing that the manifest does not, and are not read.
//
// The version of the config says how files are named. In v0.1 the names follow from the types
// of the layers and their order, whatever annotations say, except that safetensors keep the
// path of their annotation:
//
//	GGUF                 model.gguf, or model-00001-of-00002.gguf …
//	safetensors          the same with .safetensors
//	DDUF                 the path of the annotation, else as above with .dduf
//	LoRA adapter         adapter.gguf, adapter-2.gguf …
//	projector            model.mmproj, model-2.mmproj …
//	chat template        template.jinja, template-2.jinja …
//	license              LICENSE, LICENSE-2 …
//	archives             extracted at the root
//	generic file         the path of its annotation; without one it is an error
//
// In v0.2 each file is at the path of its annotation, and only a layer without one is named as
// in v0.1. Archives are extracted there too: nothing of a model is skipped.
//
// There are two shapes of the config, that of the specification and that of the program; both
// are read, by their members.
package dockerai

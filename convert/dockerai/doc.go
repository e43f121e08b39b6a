// Package dockerai parses the models of Docker Model Runner.
//
// A layer is one file, or an archive if its type says so; no layer is compressed, so the diffIDs of
// the config repeat the manifest, and are not read.
//
// The version of the config determines the names of files. In v0.1 the names depend on the types of
// the layers and their order, whatever the annotations, except that safetensors keep the path of
// their annotation:
//
//	GGUF                 model.gguf, or model-00001-of-00002.gguf …
//	safetensors          the same with .safetensors
//	DDUF                 the path of the annotation, otherwise as above with .dduf
//	LoRA adapter         adapter.gguf, adapter-2.gguf …
//	projector            model.mmproj, model-2.mmproj …
//	chat template        template.jinja, template-2.jinja …
//	license              LICENSE, LICENSE-2 …
//	archives             extracted at the root
//	generic file         the path of its annotation; without one it is an error
//
// In v0.2 each file is at the path of its annotation, and only a layer without one is named as in
// v0.1. Archives are also extracted at that path: nothing of a model is skipped.
//
// The config has two forms, that of the specification and that of the program; both are read,
// member by member.
package dockerai

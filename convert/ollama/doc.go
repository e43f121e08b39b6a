// Package ollama parses Ollama models whose weights are GGUF files.
//
// An Ollama manifest has the types of a Docker image, so its layers say what it is. Layers have
// no file names; these are the names given:
//
//	model           model.gguf, or model-00001-of-00002.gguf … in the order of the manifest
//	projector       mmproj.gguf, mmproj-2.gguf …
//	adapter         adapter.gguf, adapter-2.gguf …
//	draft           draft.gguf
//	template        template
//	system          system
//	params          params.json; several are merged, later keys win
//	messages        messages.json
//	license         LICENSE, LICENSE-2 …
//
// Of draft, template, system and messages Ollama uses the last layer, and so does this
// package; embed layers are not used by Ollama any more and are left out.
//
// Beside the layers there are ollama/manifest.json and ollama/config.json, byte for byte as
// the registry served them, and a Modelfile from which "ollama create" makes the model again.
// Texts go into the Modelfile if they have at most 1 MiB and can be written in its syntax;
// a comment stands for any that can not.
//
// Refused, with an error that says so: manifest lists, models with a layer for each tensor,
// cloud models, which have no weights, and layer types that are not known.
package ollama

// Package ollama parses Ollama models: models whose weights are GGUF files, models with a layer for
// each tensor, and lists of both.
//
// An Ollama manifest has the media types of a Docker image, so its layers identify it. Layers have
// no file names; these are the generated names:
//
//	model             model.gguf, or model-00001-of-00002.gguf … in the order of the manifest
//	projector         mmproj.gguf, mmproj-2.gguf …
//	adapter           adapter.gguf, adapter-2.gguf …
//	draft             draft.gguf
//	template          template; one with a name: template-<name>
//	system            system
//	params            params.json; several are merged, later keys win
//	messages          messages.json
//	license           LICENSE, LICENSE-2 …
//	tensor            model.safetensors, <component>/model.safetensors, draft/model.safetensors
//	json              the name in the manifest
//	config            config.json, for safetensors or without type; otherwise config-<type>
//	tokenizer         tokenizer.json
//	tokenizer.config  tokenizer_config.json
//
// Of draft, template, system and messages, Ollama uses the last layer, and so does this package.
// The template of the model is the one without a name; a named template is never used in its place.
// Characters of names and types that are not valid in a file name are percent-encoded. There can be
// one config layer.
//
// Embed layers are no longer used by Ollama and are left out. So are, by the specification, layers
// of unknown type: other prefixes, unknown types below Ollama's own, and the manifests that Ollama
// protects from removal by naming them. Package losses lists what was left out.
//
// Besides the layers there are ollama/manifest.json and ollama/config.json, byte for byte as served
// by the registry, and a Modelfile from which "ollama create" creates the model again. Texts are in
// the Modelfile if they have at most 1 MiB and can be written in its syntax; otherwise a comment
// takes their place.
//
// # Tensor layers
//
// Thousands of layers become a few safetensors files. Their headers are generated while the
// manifest is parsed, for which only the header of each blob is read; their data are ranges of the
// blobs (store.ArchiveFragments). There have been three forms of such layers:
//
//	2025           the blob has only the bytes; name, dtype and shape are parameters of the media type
//	January 2026   the only key of the blob is "data"; the manifest has component/tensor
//	since          the keys of the blob are the names of its tensors, and the manifest's name has no meaning
//
// A component is a directory. In the latest form, the part of a name before a slash is a component
// if the model has JSON layers in that directory. Tensors with the prefix that the config has for
// the draft go to draft/. Names are otherwise unchanged, and scales and biases stay beside their
// tensor. The loaders of other programs can read such a file, even if they do not support the
// quantisation.
//
// A blob named by several layers is downloaded once. A tensor in two layers must have the same
// bytes of the same blob. Metadata that is equal in all blobs that have it is metadata of the file;
// other metadata is recorded for each tensor, as "<tensor>.quant_type".
//
// ollama/headers.bin has the headers of the blobs, one after the other, as ranges of them;
// ollama/headers.json has, for each blob, the places of its header and its data, so each can be
// restored byte for byte.
//
// The type of the config layer determines the conventions of the tensors: only those of safetensors
// are assembled. Tensors of a model with a config for GGUF are refused, since the dimensions of
// their shapes are in reverse order, as is a dtype that safetensors does not define.
//
// # Lists
//
// A manifest list has a model for each runner. It is parsed (ParseList), a child is chosen
// (Choose), its manifest is read as a blob of the same repository (parseChosen), and the model is
// parsed (ParseChild); Lists does all of this. The origin of the model is the list and the runner.
// ollama/list.json is the list, ollama/manifest.json the manifest of the child; the revision of the
// model is its digest.
//
// # Trust
//
// No input is trusted; see package convert. Names of tensors are never paths: only the part before
// a slash can become a directory, by the rules for all paths. An invalid header, tensors that
// overlap or leave gaps, and a shape that does not match the number of bytes are errors, since
// files are assembled from them. All headers of a model have at most 24 MiB.
//
// The headers read during parsing are not verified: only a whole blob can be. But the digest of
// headers.bin is that of the bytes read, and the store verifies each blob and then compares that
// digest: a registry that serves different bytes in a range and in the blob is detected.
//
// The following are refused with an error: cloud models, which have no weights, lists in lists, and
// unknown runners and layer types.
package ollama

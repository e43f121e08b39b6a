// Package ollama parses Ollama models: those whose weights are GGUF files, those with a layer for
// each tensor, and lists of both.
//
// An Ollama manifest has the types of a Docker image, so its layers say what it is. Layers have
// no file names; these are the names given:
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
//	config            config.json, for safetensors or of no type; else config-<type>
//	tokenizer         tokenizer.json
//	tokenizer.config  tokenizer_config.json
//
// Of draft, template, system and messages Ollama uses the last layer, and so does this
// package. The template of the model is the one without a name: one with a name is never taken for it.
// Names and types that can be no part of a file name are written with percent signs. There can be one
// config layer.
//
// Embed layers are not used by Ollama any more and are left out, as is, by the specification, what is no
// known type of layer: other prefixes, unknown types below Ollama's own, and the manifests that it keeps
// alive by naming them. Package losses says what was left out.
//
// Beside the layers there are ollama/manifest.json and ollama/config.json, byte for byte as
// the registry served them, and a Modelfile from which "ollama create" makes the model again.
// Texts go into the Modelfile if they have at most 1 MiB and can be written in its syntax;
// a comment stands for any that can not.
//
// # Tensor layers
//
// Thousands of layers become few safetensors files. Their headers are made while the manifest is
// parsed, for which the header of each blob is read and nothing else; their data are ranges of the
// blobs (store.ArchiveFragments). There have been three forms of such layers:
//
//	2025           the blob has the bytes only; name, dtype and shape are parameters of the media type
//	January 2026   the only key of the blob is "data"; the manifest has component/tensor
//	since          the keys of the blob are the names of its tensors, and the manifest's name says nothing
//
// A component is a directory. In the latest form what is before a slash is one if the model has
// JSON layers in that directory. Tensors whose names begin with the prefix that the config
// gives the draft go to draft/. Names are kept as they are otherwise, and scales and biases stay
// beside their tensor. The loaders of other programs read such a file; whether they know the
// quantisation is another matter.
//
// A blob that several layers name is fetched once. A tensor that two layers have must be the same
// bytes of the same blob. Metadata on which all blobs agree that have it is metadata of the file;
// other metadata is said of each tensor, as "<tensor>.quant_type".
//
// ollama/headers.bin has the headers of the blobs, one after the other, as ranges of them;
// ollama/headers.json says for each blob where its header and its data are, so each can
// be made again byte for byte.
//
// The config that is a layer says in whose terms tensors are: only those of safetensors are put together.
// Those of a model with a config for GGUF are refused, since shapes are the other way round there, as is a
// dtype that safetensors does not define.
//
// # Lists
//
// A manifest list has a model for each runner. It is parsed (ParseList), a child is chosen
// (Choose), its manifest is read as a blob of the same repository (ReadChild), and the model is
// parsed (ParseChild); ListParser does all of it. The origin of the model is the list and the runner. ollama/list.json is the list,
// ollama/manifest.json the manifest of the child; the revision of the model is its digest.
//
// # What is trusted
//
// Nothing; see package convert. Names of tensors never are paths: only what is before a slash can
// become a directory, by the rules for any path. A header that is wrong, tensors that overlap or
// leave gaps, and a shape that is not the size of its bytes are errors, since files are put
// together of them. All headers of a model have at most 24 MiB.
//
// The headers that are read here are not verified: only a whole blob can be. But the digest of
// headers.bin is that of what was read, and the store verifies each blob and then compares that
// digest: a registry that says one thing in a range and another in the blob is found out.
//
// Refused, with an error that says so: cloud models, which have no weights, lists in lists,
// runners and layer types that are not known.
package ollama

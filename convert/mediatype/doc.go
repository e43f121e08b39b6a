// Package mediatype is the one table of the media types and annotation keys of all model
// formats, and of the OCI and Docker types around them.
//
// Parse says what a media type means: which Format it belongs to, whether it is a manifest,
// an index, a config or a layer (Role), what kind of content a layer has in the terms of
// ModelPack (Kind), which part of its own format it is (Part), and how its bytes are laid out
// (Archive, Codec). A type that is not in the table is an error, never a guess.
//
// # Dialects
//
// ModelPack has three spellings of one format. CNAI early (2024) used ordinary image layers
// whose descriptor has an artifactType application/vnd.cnai.model.layer.v1.tar; CNAI
// later (2025) used application/vnd.cnai.model.<kind>.v1.<packing>; ModelPack has the same
// names with vnd.cncf.model. Docker AI, Ollama and KitOps have types of their own. Legacy spellings
// are rows here, not conditions elsewhere.
//
// # Comparing
//
// A media type is compared by its base: without parameters, in lower case. Params reads the
// parameters; Ollama writes some that no strict parser accepts.
package mediatype

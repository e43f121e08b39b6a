// Package mediatype is the single table of media types and annotation keys of all model formats, and of the
// OCI and Docker types around them.
//
// Parse returns the meaning of a media type: its Format, whether it is the type of a layer, the kind of
// content as defined by ModelPack (Kind), its function in its own format (Part), and the layout of its
// bytes (Archive, Codec). A type that is not in the table is an error, never a guess.
//
// # Dialects
//
// ModelPack has three spellings. Early CNAI (2024) used ordinary image layers whose descriptor has the
// artifactType application/vnd.cnai.model.layer.v1.tar. Later CNAI (2025) used
// application/vnd.cnai.model.<kind>.v1.<packing>. ModelPack has the same names with vnd.cncf.model. Docker
// AI, Ollama and KitOps have their own types. Legacy spellings are rows of the table, not conditions
// elsewhere.
//
// # Comparison
//
// Media types are compared by their base: in lower case and without parameters. Params reads the
// parameters, including Ollama's, which strict parsers refuse.
package mediatype

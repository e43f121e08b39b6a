// Package convert converts every supported model artifact to a Model: a file table, a ModelPack config,
// and the layers of the origin.
//
//	manifest bytes ── ParseManifest ──▶ Manifest ── format.List.Detect ──▶ Format ── Parse ──▶ Model
//	                                                                                  │
//	                                                      convert/image.Build ◀───────┘
//
// Each format has its own package, based on package format; package formats lists them. Package resolve
// runs the whole conversion, starting with a name.
//
// ErrNotModel means that the artifact passes unchanged.
//
// # What is read
//
// Parsers read the manifest, the config, small text layers, and the headers of uncompressed archives,
// never weights. Compressed archives are not opened: their files are known after unpacking
// (filetable.Unpack). The exception is an archive whose manifest announces a table of contents
// (chunked.Announced), which becomes files with chunks; if the table is unusable, the archive is
// unpacked like any other.
//
// # Untrusted input
//
// All input is untrusted. A manifest has at most 8 MiB and a config 4 MiB. JSON is limited in depth and
// size, keys are case-sensitive, and duplicate keys are an error (Object). The type of a manifest
// follows from its body, not from its Content-Type. Digests are sha256, each digest has one size, and the
// sum of sizes does not overflow. Data in a descriptor is used only if it matches the digest; URLs in a
// descriptor are never followed. All paths are cleaned and stay inside the model (filetable.CleanPath).
// An unknown media type is an error that names the layer: a layer is never skipped silently. Content that
// the specification of a format ignores, such as Ollama's, is reported by package losses.
//
// # From layers to files
//
// A Builder combines layers of all formats. The layers of early CNAI are stacked like those of an image
// (Builder.Stack); the table records that if it makes a difference (filetable.Table.Stacked). In all other
// formats there are no whiteouts, and no layer overrides another: two layers with the same path must have
// the same content, otherwise the model is refused. If a digest is not yet known, as for a member of a
// tar, both entries stay in the table, and the store compares them after reading. A path is never both a
// file and a directory. A generated file is renamed if it conflicts with a file of the model.
//
// Modes are permission bits, and a file without a mode gets 0644. Owners are those of the layers, and otherwise root.
//
// # Documents
//
// The documents of the origin are kept with the model (Documents), including what has no place in
// ModelPack. A document of more than 1 MiB becomes a file below origin/; images of package convert/image
// contain smaller ones.
//
// # Purity
//
// A Model depends only on the bytes of the origin and on MappingVersion, not on its name, the time, or the
// node; its place in a mount (filetable.Origin.Prefix) is added by package resolve. Any change of the result for an
// origin needs a new MappingVersion. The headers of weights (convert/headers), which are read after the config, are
// never part of a Model.
package convert

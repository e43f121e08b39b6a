// Package convert turns any supported model artifact into a Model: a file table, a ModelPack
// config, and what is known of the layers.
//
//	manifest bytes ── ParseManifest ──▶ Manifest ── Detect ──▶ format ── Parsers ──▶ Model
//	                                                                        │
//	                                            convert/image.Build ◀───────┘
//
// Package resolve does the whole of it, from a name on, with all parsers that there are.
//
// An error that is ErrNotModel says that the artifact passes unchanged. A model in a format
// without a Parser gives errdefs.ErrNotImplemented with the name of the format.
//
// # What is read
//
// An Artifact is asked for the manifest, the config, small text layers, and the headers of
// archives that are not compressed. Weights are never read, and an archive that is compressed
// is not opened: its files are known when it is unpacked (store.Unpack). Only if the manifest vouches
// for a table of contents in it is that read (chunked.Announced), and the archive becomes files with
// chunks; if the table can not be used, the archive is unpacked like any other.
//
// # What is trusted
//
// Nothing. A manifest has at most 8 MiB and a config 4; JSON is bounded in depth and size,
// keys are compared with their case, and a key that occurs twice is an error (Object). The body of
// a manifest says what it is; its Content-Type does not. Digests are sha256, sizes can be added
// up, one digest has one size. Bytes inside a descriptor are taken only if they are the blob;
// URLs in a descriptor are never followed. Paths are clean and stay inside the model
// (store.CleanPath), whatever they come from. Unknown media types are errors that name the
// layer: a layer is never skipped in silence. What the specification of a format has ignored, as Ollama's, is named
// by package losses.
//
// # How layers become files
//
// A Builder puts layers together, whatever their format. Only those of early CNAI are stacked as those of
// an image (Builder.Stack); the table says so where that makes a difference (filetable.Table.Stacked). Else
// there are no whiteouts, and no layer wins over another. Two layers that claim one path
// must have the same content there, or the model is refused. Where a digest is not known yet,
// as for the member of a tar, both stay in the table and the store compares them once it has
// read them. A path is not a file and a directory at once. A generated file makes way for a file
// of the model.
//
// Modes are permission bits; owners are not taken over; a file without a mode has 0644.
//
// # What is kept
//
// The documents of the origin go with the model (Documents): what they say and ModelPack has no
// place for is not lost. One of more than 1 MiB becomes a file below origin/; the images of
// package convert/image hold smaller ones.
//
// # Purity
//
// The headers of weights say more than most origins, but come later than the config: what
// they say is read where the bytes are (convert/headers), and never a part of a Model.
//
// A Model follows from the bytes of the origin and MappingVersion alone: not from its name, the
// time, or the node. A change to what the same origin gives is a new MappingVersion.
package convert

// Package export writes a model to a registry or an OCI layout ahead of its use, in one of several forms.
//
//	Source ──▶ planner of the form ──▶ plan ─────────▶ writer ──▶ Target
//	of package  unpacks archives       items with       sends      registry,
//	resolve     if necessary           descriptors      items      OCI layout
//	                                     │                │
//	                                     └─ documents ◀── digests, chunks
//	                                        manifest, written last
//
// A plan is a list of items, each with a descriptor and a function that opens its bytes, and the
// function that makes the manifest from the results. Planners depend on forms but not on targets;
// the writer handles targets, retries and progress, independently of forms.
//
// # Forms
//
//	ballast    the image of convert/image, which a node would make of the source itself. Its file
//	           table also has digests of the chunks of raw files and of those in plain tars, so its
//	           digest differs from that of the facade; without chunks it is the same
//	modelpack  a ModelPack artifact: a raw layer, or a tar, for each file
//	cnai       a CNAI artifact: a tar for each file
//	image      an OCI image of plain tars that any runtime unpacks
//
// # Chunks
//
// A chunk has at most 4 MiB, and the first of several at most 256 KiB, because programs look at the
// beginning of a file first. A file of tensors (GGUF, safetensors) is cut where the data of a
// tensor of 256 KiB or more starts and ends, and smaller tensors share chunks, so that a fine-tune
// with a longer header and some changed tensors shares all other chunks with its base model. The
// positions are read from the header during the transfer.
//
// Options.Compress compresses each chunk independently. Files become blobs in the zstd seekable
// format, or tars in zstd:chunked with the table of contents that Podman reads; any zstd
// decompresses either as a whole. A compressed blob is first written to an unnamed temporary file,
// because its digest and size are not known before. One chunk at a time is in memory.
//
// # Data flow
//
// A blob with a known digest is streamed from the source to the target, several at a time, and is
// verified on the way: the last bytes are not sent before the digest has matched. It is neither
// held in memory nor written to disk. A blob that the target already has is not sent (but it is
// read if digests of its chunks are wanted), and between repositories of one registry it is
// mounted. A file in an archive, or one that is assembled from parts, has no known digest: a
// temporary store unpacks and verifies it, and it is read from there. Tars are generated while they
// are sent; their digest is known at the end of the upload.
//
// The manifest is sent last, so a failed conversion leaves nothing under the name.
//
// Layouts are written by convert/layout: content/oci.Store of oras-go v2.6.4 needs the digest of a blob before its
// bytes, writes index.json in place, and syncs nothing.
//
// Memory: four streams with four buffers of 1 MiB each, one more for a tar, and 16 chunks of the
// temporary store.
//
// # Signatures
//
// Options.Sign attaches two bundles to the manifest, as referrers: the bundle of "cosign sign",
// over its digest, and the bundle of "model_signing sign", over the files. Files in tars are not
// signed, since their digests are not known. Signatures are sent before the name. The same key makes
// the same bytes, so a registry has them once however often the model is written; keyless signatures
// are new each time.
//
// # Determinism
//
// The same source gives the same manifest, whatever its name and its target: files are ordered by
// kind and path, and owners and times are those of the source, or root and 1970. The files of a
// directory have neither, and are executable or not.
//
// # Facts about the model
//
// Facts that the origin does not have are taken from the headers of the files, in the config of
// every form that has one; the context length is an annotation. For --as ballast the headers are
// read from the verified bytes during the transfer; without chunks, blobs that are present are not
// read, so no facts are added, and neither are facts from files in archives.
//
// # Documents of the origin
//
// The manifest and the config of the origin are kept: with --as ballast as in convert/image, and
// with --as modelpack and cnai in annotations if they are small, otherwise as documents, unless a
// file of the model has the same content. So the origin can be restored byte for byte, as long as
// its blobs are files too. Result.Losses lists what the form has no place for.
package export

// Package push writes a model somewhere else, ahead of its use: to a registry or into an OCI
// layout, in one of several forms.
//
//	Source ── Model, Fetcher ──▶ plan: layers ──▶ Target ──▶ manifest, last
//	of package resolve            one of four     registry or
//	                              forms           OCI layout
//
// # Forms
//
//	ballast    the image of convert/image, which a node would make of the source itself. Its file
//	           table also has digests of the chunks of raw files and of those in plain tars, so its
//	           digest is another than that of the facade's; without chunks it is the same
//	modelpack  a ModelPack artifact: a raw layer, or a tar, for each file
//	cnai       the same in the spellings of CNAI before ModelPack, whose specification has raw layers
//	           for weights only: each other file is in a tar
//	image      an OCI image of plain tars that any runtime unpacks
//
// # Chunks
//
// A chunk has at most 4 MiB. A file of tensors (GGUF, safetensors) is cut where the data of a tensor of
// 256 KiB or more starts and ends, and smaller tensors are together, so that a fine-tune with a longer
// header and some other tensors has all other chunks in common with what it was made from. Where
// to cut is read from the header while the file passes by.
//
// Options.Compress compresses each chunk by itself. Files become blobs in the zstd seekable format, or
// tars in zstd:chunked with the table of contents that Podman reads; either way any zstd decompresses
// the blob whole. A compressed blob is written to a temporary file without a name first: its
// digest and size are not known before. One chunk at a time is in memory.
//
// # How bytes go
//
// A blob whose digest is known goes from the source to the target as a stream, several at a time, and
// is verified on its way: the last bytes are not sent before the digest has matched. It is
// neither held in memory nor written to the disk. One that the target has is not sent, and between
// repositories of one registry it is mounted. (Digests of chunks need the bytes nevertheless, which
// are then read and not sent.) What the digest is not known of is a file inside of
// an archive or one that is put together from parts: these are brought into a temporary store
// first, which verifies them, and are read from there. Tars are made on the fly; their digest is known
// at the end of the upload.
//
// The manifest is sent after all else, so a conversion that fails leaves nothing under the name.
//
// Memory: four streams of four buffers of a mebibyte, and 16 chunks of the temporary store.
//
// # Signatures
//
// Options.Sign attaches two bundles to the manifest, as referrers: what "cosign sign" makes, over its digest,
// and what "model_signing sign" makes, over the files. The files are signed where the digest of each is known, which
// is not so in tars. They are sent before the name, and the same key makes the same bytes, so a
// registry has them once however often the model is written.
//
// # What follows from what
//
// The same source gives the same manifest, whatever it was called and wherever it went: files are in
// the order of kind and path, owners are left out, and times are those of the source or 1970.
// The files of a directory have no times, and are executable or not.
//
// # What is known of the model
//
// What the origin leaves open is filled from the headers of the files, in the config of every form
// that has one; the context length is an annotation. For --as ballast they are read from the bytes
// that pass by and are verified; without chunks, blobs that are there are not read, so nothing is
// filled. Files in archives have no headers that can be read so.
//
// # What is kept
//
// The manifest and the config of the origin are kept by --as ballast, as convert/image does it, and by
// --as modelpack and cnai, in annotations if they are small, else as documents, unless a file of the
// model is the same. So the origin can be
// put together again byte for byte, as long as its blobs are files too. Result.Losses says what
// has no place in the form.
package push

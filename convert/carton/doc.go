// Package carton reads models in the Carton format, version 1: a zip archive with a MANIFEST of
// digests, a description, and files, which can also be outside of the archive.
// https://github.com/VivekPanyam/carton/blob/03180cb35999a2e73ecade3a38452fb6a2aa939b/docs/specification/format.md
//
//	Source ────── Open ──────┐
//	                         ├▶ Carton ─┬─ Model ──▶ convert.Model    reads only small files
//	directory ─── OpenFolder ┘          └─ Fetcher ▶ transfer.Fetcher the source of the bytes
//
// # One blob per file
//
// The file table of a carton has a raw blob for each file in MANIFEST: its digest is in MANIFEST,
// its size in the directory of the archive. So the digests of all layers are known before a byte of
// weights is read, and equal files of other models, in any format, are the same blob. MANIFEST and
// empty files are in the table itself. LINKS is not: the model hash does not cover it, and a stored
// model needs no URLs.
//
// The Fetcher of the carton reads blobs:
//
//	stored members        ranges of the archive
//	deflate and zstd      decompressed from the first byte; the store gets one stream
//	files only in LINKS   from the first URL that has the file, decoded; one stream
//
// The Fetcher depends only on the archive, and Open can create it again at any time.
//
// # Reading
//
// Open reads the end of the archive, its directory, MANIFEST, LINKS and carton.toml, which is
// compared with its digest in MANIFEST. Model requests the sizes of files that are only in LINKS.
//
// An archive at a URL is read by ranges. From a server without range requests it is copied to an
// unnamed temporary file, which is removed with the Carton. In a directory with an unpacked carton,
// the files are stored members; the rules are those for archives.
//
// # Writing
//
// Pack writes an archive, from the files of a carton or of another model; fromFiles returns the
// model of the latter without writing an archive. A carton.toml needs only the two Facts of its
// runner.
//
// # Identity
//
// The digest of MANIFEST is the model hash. It is also the digest of the origin, unless the carton
// is a layer in a registry: then that is the digest of the manifest in the registry. The hash does
// not cover the layout of the archive or LINKS. MANIFEST is trusted as received, over https or from
// the registry, as no digest of the whole archive is computed; with Options.Hash it must match the
// hash. The store compares the bytes of files with MANIFEST.
//
// # Refused cartons
//
// The following is refused: an ambiguous archive (see zipdir); a MANIFEST with a line that is not a
// path and a digest, with a duplicate path, with lines that are not in byte order, with MANIFEST or
// LINKS in it, or without carton.toml; a carton without the directory model; a file that is neither
// in the archive nor in LINKS; two sizes for one digest; a carton.toml in which a field that is
// read here is missing or invalid; a symbolic link outside of model/. Other fields of carton.toml,
// and the tensors of self-tests and examples, are not checked, because only the runner of the model
// uses them. Members that are not in MANIFEST are left out, with a warning.
//
// # Modes and links
//
// Files have mode 0644 and no time: writers set neither. The digest of a symbolic link in MANIFEST
// is that of its target's content. So a link is another name of the file with that digest, and its
// target is not read.
//
// # Network
//
// URLs of LINKS are not trusted. They are followed over https (http only if allowed), never with a
// user name in them, and by the function of the caller, which decides which addresses may be
// dialled. Transfers are decoded (zstd, gzip, br, deflate) up to the size of the file. After any
// error of a URL, the next one is tried. For a small file, wrong bytes are such an error; for a
// large one they are detected at its end, and the next fetch of the same Fetcher starts with the
// next URL. If URLs report different sizes, see sizeOf.
package carton

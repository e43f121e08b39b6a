// Package carton reads models in the Carton format, version 1: a zip archive with a MANIFEST of
// digests, a description, and files that can also be elsewhere.
// https://github.com/VivekPanyam/carton/blob/03180cb35999a2e73ecade3a38452fb6a2aa939b/docs/specification/format.md
//
//	Source ─ Open ─▶ Carton ─┬─ Model ──▶ convert.Model   nothing but small files is read
//	                         └─ Fetcher ▶ store.Fetcher   where the bytes are
//
// # One blob a file
//
// The file table of a carton has a raw blob for each file that MANIFEST lists: its digest is in
// MANIFEST, its size in the directory of the archive. So the digests of all layers are known
// before a byte of weights is read, and equal files of other models, of whatever format, are the
// same blob. MANIFEST and empty files are in the table itself. LINKS is not: the model hash does not
// cover it, and who has the model needs no URLs.
//
// A blob is brought by the Fetcher of the carton:
//
//	stored members        ranges of the archive
//	deflate and zstd      decompressed from the first byte; the store gets one stream
//	files only in LINKS   from the first URL that has the file, decoded; one stream
//
// The Fetcher depends on the archive alone and can be made again at any time by Open.
//
// # What is read
//
// Open reads the end of the archive, its directory, MANIFEST, LINKS, carton.toml,
// tensor_data/index.toml, string tensors up to a limit, and the symbolic links. Each but MANIFEST
// and LINKS is compared with its digest in MANIFEST. Model asks for the size of files that are
// only in LINKS.
//
// An archive at a URL is read by ranges. From a server that does not know them it is copied
// to a temporary file, which has no name and goes away with the Carton. A directory that a carton
// was unpacked to (Folder) is read as an archive of its files, with all checks that one gets.
//
// # Identity
//
// The digest of MANIFEST is the model hash, and the digest of the origin, unless the carton is a
// layer in a registry: then that is the digest of the manifest there. The hash does not cover the
// layout of the archive or LINKS. MANIFEST is believed as it comes, over https or from the
// registry, as no digest of the whole archive is computed; with Options.Hash it is believed only if
// it is the one that is meant. Bytes of files are compared with MANIFEST by the store.
//
// # What is refused
//
// An archive that can be read in two ways (see zipdir). A MANIFEST with a line that is no path
// and digest, a path twice, lines that are not in the order of their bytes, MANIFEST or LINKS in it, or
// without carton.toml. A carton without the folder model. A file that neither
// the archive nor LINKS has. Two sizes for one digest. A carton.toml with a missing or
// wrong field of the specification, or with a reference to a tensor or file that is not there; fields that are
// not known, and what the options of a runner are, are not looked at. Tensors whose size is not that of their shape. Symbolic links outside of
// model/, or that leave it. Members that MANIFEST does not list are left out, with a warning.
//
// # Modes and links
//
// Files have mode 0644 and no time: writers set neither. A symbolic link in model/ is a file with
// the content of its target, which is what its digest in MANIFEST is made of.
//
// # Network
//
// URLs of LINKS are a stranger's. They are followed over https (http only if allowed), never
// with a user name in them, and by the function the caller gives, which decides what addresses
// may be dialled. Transfers are decoded (zstd, gzip, br, deflate) up to the size of the file.
// Whatever goes wrong with a URL, the next one is tried: for a small file also wrong
// bytes; for a large one these are found at its end, and the next fetch of the same Fetcher begins
// with the next URL. Where URLs tell different sizes, see sizeOf.
package carton

// Package chunked reads layers written so that each piece of a file can be downloaded and
// decompressed independently, and writes the parts of them that are not tar.
//
//	eStargz        tar+gzip   a gzip member for each chunk, a table of contents as the last member of
//	                          the tar, a footer with its place
//	zstd:chunked   tar+zstd   a zstd frame for each chunk, the table in a skippable frame, a footer;
//	                          as written by stargz, and by Podman, Buildah and Skopeo
//	zstd seekable  zstd       independent frames and a table of their sizes at the end
//
// For other tools these are ordinary tar+gzip, tar+zstd and zstd.
//
// # Trust
//
// Only a table of contents whose digest is in an annotation of the layer, and so covered by the
// manifest of the model, is trusted. Announced uses only annotations, so an ordinary layer costs no
// additional request. The place of the table comes from annotations too, or from the footer, which
// is not trusted: a wrong place has other bytes, with another digest. A table without a digest in
// the manifest is not used, and neither is the table of the zstd seekable format: it has no digests
// of chunks.
//
// The table is used instead of the tar. Both have the same author, but they are not compared, and a
// diffID of the layer is not checked: that would need the whole layer.
//
// # Opaque layers
//
// ErrOpaque means that a layer cannot be used in chunks: its table is missing, invalid, too large,
// or lists a file without digests, or chunks of more than store.MaxChunk. Such a layer is unpacked
// as a whole, like any other, without any loss. Chunks are not looked at here: the store unpacks a layer as a whole
// when it finds that they cannot be read. A file that a model must not contain (a device, a
// path that leads out of the model) is an error, as it is in a tar.
//
// Compressed tables have at most 16 MiB and uncompressed ones 64 MiB, with at most 300,000 entries.
// They are decoded entry by entry; no memory is allocated according to a number in them.
//
// # The same files
//
// Files returns the same as unpacking the layer: the same paths, modes, times, links and content.
// Files that stargz adds to a layer, its table and its landmarks, are left out: they do not belong
// to the model, and would differ in each layer. A table does not have two facts: fractions of a
// second, which stargz leaves out, and duplicate names in a tar, of which stargz keeps the last.
//
// # The library of stargz
//
// The footer of eStargz and the names of its files are those of estargz v0.19.1. ParseFooter panics if the extra
// field is short, so its length is compared before. What else the library has needs more memory or more lines:
//
//   - ParseTOC and Open have no limits, and compare no digest before they return. A table of 16 MiB of empty entries, in
//     17 kB of gzip, takes 1.7 GiB in ParseTOC and 2.4 GiB in Open; a layer of 230 bytes, with a file of 16 GiB in chunks of
//     64 bytes, takes 2 GiB in Open; a table of 18 bytes of zstd that declares a window of 512 MiB takes as much.
//   - DecompressTOC does not return the size of the table, for which memory is reserved (Room).
//   - TOCEntry has neither endOffset nor chunkType, which Podman writes, but extended attributes: in place of an entry
//     of 168 bytes, one of 296, and 132 MiB for a table of 16 MiB of such attributes, where tocWeight allows 64.
//   - zstdchunked's ParseFooter panics for less than 40 bytes, returns neither the uncompressed size of the table nor its
//     type, and does not know Podman's footer.
//   - zstdchunked's Compressor writes no data for restoring the tar, no endOffset and no chunks of zeros, and a footer and
//     annotations that Podman does not look for. estargz.Build cuts files at equal distances, not where tensors end.
//
// Formats:
// https://github.com/containerd/stargz-snapshotter/blob/v0.18.2/docs/estargz.md
// https://github.com/containers/storage/blob/v1.59.1/pkg/chunked/internal/minimal/compression.go
// https://github.com/facebook/zstd/blob/v1.5.7/contrib/seekable_format/zstd_seekable_compression_format.md
package chunked

// Package chunked reads layers that were written so that each piece of a file can be fetched and
// decompressed by itself, and writes the parts of them that are not tar.
//
//	eStargz        tar+gzip   a gzip member for each chunk, a table of contents as the last member of
//	                          the tar, a footer with its place
//	zstd:chunked   tar+zstd   a zstd frame for each chunk, the table in a skippable frame, a footer;
//	                          as stargz writes it, and as Podman, Buildah and Skopeo do
//	zstd seekable  zstd       independent frames and a table of their sizes at the end
//
// To everybody else these are ordinary tar+gzip, tar+zstd and zstd.
//
// # What is trusted
//
// A table of contents that the manifest of the model vouches for: an annotation of the layer has its
// digest. Announced looks at annotations alone, so an ordinary layer costs no request more. The
// place of the table comes from annotations too, or from the footer, which nobody vouches for: a
// wrong place gives other bytes, and these have another digest. A table without a digest in the
// manifest is not looked at, nor is the table of the zstd seekable format: it has no digests of
// chunks.
//
// What a table says is used instead of the tar. The same author wrote both, but nothing compares
// them, and a diffID of the layer is not checked: that would take the whole of it.
//
// # What is refused, and what is left
//
// ErrOpaque says that a layer can not be used in chunks: its table is missing, wrong, too large, or
// lists a file without digests, or chunks of more than store.MaxChunk. Such a layer is unpacked whole, like any
// other, and nothing is lost. A file that a model must not contain (a device, a path that leaves the
// model) is an error, as it is in a tar.
//
// Compressed tables have at most 16 MiB and uncompressed ones 64, with at most 300,000 entries.
// They are decoded entry by entry; nothing is allocated on the word of a number in them.
//
// # The same files
//
// Files gives what unpacking the layer gives: the same paths, modes, times, links and content. What
// stargz adds to a layer for itself, its table and its landmarks, is left out: it is not of the model,
// and would be another file in each layer. Two things a table does not say: fractions of a second,
// which stargz leaves out, and that a tar has two members of one name, of which stargz keeps the
// last.
//
// Formats:
// https://github.com/containerd/stargz-snapshotter/blob/v0.18.2/docs/estargz.md
// https://github.com/containers/storage/blob/v1.59.1/pkg/chunked/internal/minimal/compression.go
// https://github.com/facebook/zstd/blob/v1.5.7/contrib/seekable_format/zstd_seekable_compression_format.md
package chunked

// Package hydrate fetches what tables lack: it turns blobs into objects.
//
//	Hydrate ─▶ hydration (one for a table from a group of sources)
//	             │ plan: targets; missing: those not present; reserve: space for these
//	             ▼
//	           blobFetch (one for a target from a group of sources, shared by all that wait)
//	             ├ file     chunkfile.File.Fill, hash ──▶ Publish
//	             ├ small    one range, split ──▶ Publish
//	             └ archive  transfer.Fetch.All ──▶ sink (tar, unpack, fragments) ──▶ Publish
//
// A hydration, with its fetches, is either awaited or in the background; a single fetch becomes awaited when
// a reader waits for it. Awaited work continues for Engine.Linger after its last caller has gone, or
// until Engine.Abandon.
//
// Targets are fetched in the order that loaders have:
//
//	small files, smallest first → the heads of large files → large files by name, each from its begin to its end
//
// A recorded order (wish) comes before it: the targets that it has whole and the groups of large files, in that order
// across files. It may be as short as the reads since the model was mounted. Readers follow its groups and heads
// (chunkfile.Sequence). Targets that readers wait for come before all of it. What the order, or a head, has wrong costs
// time only.
//
// If nodes share pieces of the blobs (transfer.Sources.Piece), each engine has an order of its own for what a
// recorded one does not have of large files, after the heads: of all their pieces, and then of the files that are
// fetched whole. Whoever asks for a piece first sends it to all others, so one link would serve all nodes that ask
// in one order. Pieces come in any order of files with hash states, and, up to a quarter of the memory, of raw ones
// and those with chunks (hashedLater), which are hashed from the page cache when all of them are there.
//
// A file is assembled by one hydration at a time; they are locked in a fixed order. One that waits for another gives
// it its priority, and looks for the file again when the other one has assembled it. An archive is unpacked while it
// arrives if an unpacker is free, otherwise afterwards: no buffers are held while waiting for one. With a window of
// zstd above smallWindow it is unpacked afterwards, one at a time, so that no registry decides for how long the
// memory is in use. If an unpacker is revoked because no bytes arrive, the fetched bytes stay and are unpacked again.
//
// A file that arrives from elsewhere (Arrived) ends its fetch without an error.
//
// # From blob to objects
//
// Ranges arrive concurrently, in any order; digests are computed in order, from memory.
//
//	raw blob, file with chunks  a chunkfile.File: staged as one file, which is renamed to the object
//	uncompressed tar            staged as one file for each member, by the ranges in the table; the
//	                            headers are read again from verified bytes before publishing
//	compressed tar              staged as it is, and unpacked while it arrives or afterwards; members
//	                            are published when the digest of the blob and the diffID match;
//	                            their blocks of zeros are holes
//	fragments                   staged at their offsets in the assembled file, which is published when
//	                            the digests of all fragments match
//
// A blob whose files all have chunks with digests is not fetched whole, and a chunk in an existing object is copied.
// The exception is a compressed archive of which some chunk cannot be decompressed, or has other bytes from all
// sources than the table says: it is unpacked whole, like one without a table of contents, and what of it has the
// digest of a file of the table is that file. If the table has the states of the file's digest between the chunks
// (verify.State), chunks are verified by these states, in any order and on all cores, which also verifies the file.
// Otherwise the bytes are hashed for the chunk and again for the file.
//
// A fetch of the same blob from the same group reuses staged bytes. All that an earlier process staged is verified
// again before it becomes an object: chunks with digests one by one (package chunkfile), everything else with its
// blob. Chunks that are wrong, cut off or cannot be read are fetched again, and a blob that turns out to be wrong is
// fetched once more from scratch.
package hydrate

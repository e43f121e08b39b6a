// Package chunkfile fetches files by chunks. Readers, read-ahead and hydrations share one File: what one has
// fetched, or is fetching, is available to all.
//
// # Layout
//
// A Layout describes how a file is stored in a blob: its chunks with their digests or, for a raw blob without
// digests, chunks of equal size, which no reader gets before the whole file is verified. Chunks are fetched, staged and
// marked in groups: consecutive chunks of at most staging.ChunkSize bytes in total that are close to each other
// in the blob, so that small chunks do not need one request each. The first chunk of a file with more bytes is a
// group by itself: package export makes it small, because programs look at the beginning of a file first.
//
// A chunk that its writer compressed in a way that needs more memory than the chunk, or more bytes than its own, is not
// read (ErrUndecodable). The file is then complete only when its archive is unpacked whole.
//
// Chunks with digests are verified before they are staged; the name of the directory has the digests against which
// they were verified. Those of an earlier process, or of a time when the file had other users, are verified again:
//
//	synced in this boot (package staging)   before the file is complete, beside the rest of the download; readers get them at once
//	all others                              before they are read
//
// What is wrong, or cannot be read, is fetched again. So are chunks without digests that cannot be read; if they are
// wrong, so is the file, and all of it is fetched again. Staged bytes belong to one group of sources: other sources
// may not be entitled to them.
//
// # A read
//
//	Await → ensure(group) → call ──(a buffer)──▶ fetchGroup: Finder, or transfer.Range → decode, verify → stage
//
// A call is a group being fetched, shared by all that need it. A reader first makes the call and then waits for
// one of the buffers reserved for readers; all other work gets its buffer first. Work that has both a buffer
// and a call waits for no other work, which prevents deadlocks. A reader that finds an existing call makes it
// urgent. The call continues if the reader is interrupted, because the read will be repeated.
//
// What a reader will need is fetched ahead: the next groups of the file if it reads in order, or, if it follows a
// Sequence, what is next there, also of other files.
package chunkfile

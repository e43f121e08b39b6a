// Package chunkfile brings files chunk by chunk. Readers, reading ahead and the work that brings a whole
// file use the same File as equals: what one has brought, or has on its way, is there for all.
//
// # Layout
//
// A Layout says how a file comes out of a blob: its chunks with their digests, or, for a raw blob
// without digests, chunks of equal size that are unverified until the whole file is. Chunks are fetched,
// staged and marked in groups: consecutive chunks of at most staging.ChunkSize bytes together that lie
// close to each other in the blob, so that small chunks cost no request each.
//
// Chunks that have digests are verified before they are staged. What is staged belongs to a group of
// sources all the same: who has other sources may have no right to the bytes, and no use for slow ones.
//
// # One read
//
//	Await → want(group) → call ──(a buffer)──▶ bring: Finder, or transfer.Range → decode, verify → stage
//
// A call is a group that is on its way, for all who want it. A reader that waits makes the call first
// and then waits for a buffer of those that only readers have; all other work has its buffer before it
// makes a call. Who has a buffer and has made the call waits for nobody else, so there are no circles. A
// reader that finds a call makes it urgent. Work goes on when the reader that began it is interrupted:
// it will ask again.
package chunkfile

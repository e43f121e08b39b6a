// Package transfer is the way in: where bytes come from, and who may have them brought when. It knows
// neither tables nor disks; time is tested with synctest.
//
//	Fetcher    reads ranges of blobs from somewhere; not trusted
//	Source     a Fetcher with a name: whose bytes they are
//	Sources    where a blob can be had, by who asks for it, and how they did
//	Fetch      brings ranges: asks sources in turn, goes on elsewhere when one is slow; or, from servers
//	           without ranges, blobs from the first byte to the last
//	Scheduler  shares places, buffers and unpackers between sources
//	Flow       a piece of work, with its urgency
//
// A slot is held by who has something to do with it. It can be revoked at any time: its context ends,
// and whoever had it gives it back and asks again. Nothing is lost by that but the bytes of one chunk.
package transfer

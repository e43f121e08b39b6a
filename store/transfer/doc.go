// Package transfer fetches bytes from outside and schedules the work. It does not depend on tables and disks;
// its timing is tested with synctest.
//
//	Fetcher    reads ranges of blobs from outside, at one place; not trusted
//	Source     a Fetcher with a name that identifies where its bytes come from
//	Endpoint   the server of a Source, an origin or a mirror: its failures, rate and guilt, for all blobs
//	Sources    the sources of a blob, by caller, with their results, and which of them goes first
//	Attempts   the requests for the same bytes: which source is asked, when another one is, when all are again,
//	           what the result says about an endpoint, which error is reported
//	Fetch      fetches ranges: leaves slow sources, avoids those of wrong bytes; or reads blobs
//	           sequentially from servers without ranges
//	Scheduler  shares request slots, buffers and unpackers between sources
//	Flow       a piece of work with its urgency
//
// Only Attempts turn to another server, for ranges of blobs as for what the facade and conversions read. Who offers
// bytes lists its servers as sources with endpoints; a Fetcher asks its own, follows redirects and answers challenges.
//
// A slot is held only by work that can use it. It can be revoked at any time: its context ends, and the holder
// releases it and acquires another one. At most the bytes of one chunk are lost.
package transfer

// Package transfer fetches bytes from outside and schedules the work. It does not depend on tables and disks;
// its timing is tested with synctest.
//
//	Fetcher    reads ranges of blobs from outside, at one server or file; not trusted
//	Source     a Fetcher with a name that identifies where its bytes come from
//	Endpoint   the server of a Source, an origin or a mirror: its failures, rate and guilt, for all blobs
//	Sources    the sources of a blob, by caller, with their results
//	Attempts   the requests for the same bytes, to one source after another
//	Fetch      fetches ranges: replaces slow sources, and blames those of wrong bytes; or reads blobs
//	           sequentially from servers without ranges
//	Scheduler  shares request slots, buffers and unpackers between sources
//	Flow       a piece of work with its urgency
//
// # One chooser
//
// Who offers bytes only lists its servers, as sources with endpoints. Everything else is here, in one place each, for
// ranges of blobs and for what others request (documents, small blobs, blobs that pass through):
//
//	Sources.Order   which source goes first: origins and mirrors without problems as they were listed, those
//	                that rest or do not have the blob later, mirrors that lied not at all if there is an origin
//	Attempts        when another source is asked, and when all are asked again; whether a mirror may be tried
//	                (Endpoint), what a result says about it, and which error is reported
//	Fetch.Range     when a source is left because it is slow, and what is done about wrong bytes
//	Convict         what a proof of wrong bytes does
//
// Only the Attempts turn to another server. A Fetcher asks its own once; it may follow redirects, answer challenges and
// renew what it remembers. The functions between the owner of a slot and the request are counted by a test
// (convert/remote).
//
// # Slots
//
// A slot is held only by work that can use it. It can be revoked at any time: its context ends, and the holder
// releases it and acquires another one. At most the bytes of one chunk are lost.
package transfer

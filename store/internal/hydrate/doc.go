// Package hydrate brings what is missing of tables: it turns blobs into objects.
//
//	Hydrate ─▶ hydration (one for a table from a group of sources)
//	             │ plan: targets; missing: which are not there; reserve: room for these
//	             ▼
//	           blobFetch (one for a target from a group of sources, however many wait)
//	             ├ file     chunkfile.File.Fill, hash ──▶ Publish
//	             ├ small    one range, split ──▶ Publish
//	             └ archive  transfer.Fetch.All ──▶ sink (tar, unpack, fragments) ──▶ Publish
//
// A hydration is awaited, or in the background; so are its fetches, and one of them is awaited alone when
// a reader waits for it. What is awaited goes on for Engine.Linger after the last who waited has gone.
//
// Files that are put together from fragments are locked one by one, in an order that is the same for all.
// An archive is unpacked while it arrives if an unpacker is free, else when it is there: nobody holds
// buffers while he waits for one. If an unpacker is revoked because nothing arrives, what was fetched stays
// and is unpacked anew.
//
// What comes from elsewhere meanwhile (Arrived) ends the fetch without an error.
package hydrate

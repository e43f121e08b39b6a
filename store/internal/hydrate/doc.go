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
// a reader waits for it. Awaited work continues for Engine.Linger after its last caller has gone.
//
// Assembled files are locked individually, in a fixed order. An archive is unpacked while it arrives if an
// unpacker is free, otherwise afterwards: no buffers are held while waiting for one. If an unpacker is
// revoked because no bytes arrive, the fetched bytes stay and are unpacked again.
//
// A file that arrives from elsewhere (Arrived) ends its fetch without an error.
package hydrate

// Package store keeps the verified bytes of a node: every file of every model once, by digest.
//
// Invariant: a byte leaves the store only after a digest over it has matched. Digests are compared in one
// function (verify.Compare), and an object gets its name only after that.
//
// # Layout
//
// Imports go down only; TestLayout compares this picture with the code. The store combines the packages
// below it and decides on policy. They call it only through the interfaces that host.go implements.
//
//	store      : expose hydrate chunkfile object meta staging dirs transfer filetable verify boltfile
//	expose     : hydrate chunkfile object meta staging transfer filetable verify
//	hydrate    : chunkfile meta staging dirs durable span transfer filetable verify
//	chunkfile  : staging transfer filetable verify
//	object     : meta staging dirs filetable verify
//	meta       : filetable boltfile durable verify
//	staging    : dirs filetable
//	transfer   : offheap
//	filetable  : verify
//	verify     :
//	boltfile   :
//	durable    :
//	dirs       :
//	offheap    :
//	span       :
//
//	durable    small files that are replaced atomically
//	dirs       paths below the directory of the store; some directories stay open
//	offheap    memory for buffers
//	span       steps of a pull, as spans of OpenTelemetry
//	boltfile   checks of databases that may be damaged
//	verify     the comparison of digests
//	filetable  the file table, the result of all parsers
//	transfer   sources of bytes, and the scheduling of requests
//	staging    incomplete files on disk
//	meta       records in a database
//	object     complete files: publish, check, remove
//	chunkfile  files fetched by chunks, for readers and hydrations
//	hydrate    fetching what tables lack
//	expose     files that can be read before they are complete; views
//	store      policy: garbage collection (GC), space (reservations), what is complete
//
// # Terms
//
//	object     a complete, verified file, named by the digest of its content
//	blob       a unit of transfer at the registry: a raw file, or an archive of files
//	table      the file table of a model: its files and the sources of their bytes
//	contents   the members of a tar blob, recorded by the digest of the blob
//	assembly   a file made of parts, which are ranges of several blobs (fragments)
//	source     a repository, with a kind of credentials, that provides bytes
//	group      the sources of a table; also: chunks that are fetched together
//	hydration  fetching everything that a table lacks from a group of sources
//	target     the unit of a hydration: a file with chunks, some small files, or an archive
//	reference  keeps the objects of a table: a snapshot or a pin
//	view       the objects that one reference may read; the common view has all objects
//	exposure   a file of a view that can be read before it is an object
//	way        how an exposed file is fetched: its chunks and their digests
//	chain      the states of sha256 of a blob, by which its windows are verified before it is complete
//	verdict    the result of a signature check of a table
//	image      a converted image: its documents, its origin and the names that resolved to it
//
// # Crash safety
//
//	absent → partial → verified → fsync → rename → fsync directory → record → complete
//
// A crash at any point leaves the old or the new state, or a file without a record, which is hashed before it is
// used. Staged bytes of an earlier process are verified again before they are read or, for chunks with digests that
// were synced in the same boot (package staging), before the file is complete. The file becomes an object only when
// its own digest matches, so a wrong table cannot give a file a wrong name. Package hydrate describes how each kind
// of blob becomes objects; garbage collection and damage lead back to absent (package object).
//
// # Files
//
//	<dir>/store.db                        metadata (bbolt); schema in package meta
//	<dir>/store.db.schema                 version of its schema, as text
//	<dir>/store.db.damaged-<time>         a damaged database that was replaced; not read
//	<dir>/objects/sha256/<2>/<64 hex>     objects; a data-only lower layer of overlayfs
//	<dir>/views/<reference>/sha256/…      links to the objects of a view
//	<dir>/damaged/<64 hex>                damaged objects
//	<dir>/partial/<64 hex>-<32 hex>/      marks and staged files of a blob, or of a file with chunks, from a
//	                                      group; for a file of one chunk, the file itself; data of an
//	                                      assembly, by its recipe
//
// # Isolation of tenants
//
// Users of a node do not trust each other, and registries may lie, stall or be slow.
//
//   - Request slots, buffers, unpackers and readers are shared fairly (transfer.Pool): a source that hangs
//     keeps at most half of them while another source waits.
//   - Staged bytes belong to the group of sources that fetches them. Fetching the same blob from other sources
//     is a separate transfer, and the first to finish makes the object.
//   - Objects fetched with credentials are private to their sources. Other sources must provide all bytes;
//     until then object and chunks do not exist for them. What they provided is the same object then.
//     So an object is opened by the names of the sources that ask for it (OpenObject), in the view of a
//     reference (View), or as a document of an image (OpenDocument); never by its digest alone, which anybody
//     can write into a table.
//   - A table shown when complete uses the directory of all objects, since its sources provided all of it. A
//     table shown earlier may name digests that it must not read, so it uses a view of its own. The view is removed
//     with its reference: another with its name begins without files.
//   - Chains come from outside, are signed by a key that the node trusts, and are never those of a download here:
//     nobody learns from them what others have downloaded. They verify bytes and give none: each reader gets them from
//     its own sources.
//   - The way in which a view fetches an exposed file is recorded before the file can be read, and never
//     changes, whatever restarts or other pulls do.
//
// # Garbage collection
//
// An object lives while an unexpired reference or a running hydration needs it, or while it is a document of an
// image. Other objects are evicted, least recently used first, when space is short (Run), when a hydration needs
// space, or on request (GC). Nothing is removed while the needs of a reference are unknown.
//
// # Locks
//
// Each package guards its own state. Order across packages: locks of package object before a transaction of package
// meta; expose.Set.exposing before a transaction and before expose.Set.mu; expose.Set.mu and hydrate.Engine.mu before
// chunkfile.Set.mu; Engine.mu before the locks of its hydrations; File.opening before the files of a name in
// staging.Area are claimed; chunkfile.Set.asideMu before all others, by work that holds none; Set.mu before File.mu
// and staging.Area.mu. The locks of the scheduler, transfer.Sources, offheap.Pool, chunkfile.Set.idleMu, File.mu,
// staging.Partial.mu, staging.Area.mu and dirs.Root.mu come last, in this order. No file is opened, read, written,
// closed or removed in a transaction or under a lock, but for File.opening, chunkfile.Set.asideMu, the claims of
// staging.Area, expose.Set.exposing, the locks of package object, the gaps of a staging.Partial, and directories in
// package dirs.
package store

// Package store keeps the verified bytes of a node: every file of every model once, by digest.
//
// Invariant: a byte leaves the store only after a digest over it has matched. Digests are compared in one
// function (verify.Compare), and an object gets its name only after that.
//
// # Layout
//
// Imports go down only; TestLayout compares this picture with the code. The store combines the packages
// below it, which do not know it, and decides on policy.
//
//	store      : hydrate chunkfile object meta staging transfer filetable verify boltfile
//	hydrate    : chunkfile meta staging transfer filetable verify
//	chunkfile  : staging transfer filetable verify
//	object     : meta filetable verify
//	meta       : filetable boltfile
//	staging    : filetable
//	transfer   : offheap
//	filetable  : verify
//	verify     :
//	boltfile   :
//	durable    :
//	offheap    :
//
//	durable    small files that are replaced atomically
//	offheap    memory for buffers
//	boltfile   checks of databases that may be damaged
//	verify     the comparison of digests
//	filetable  the file table, the result of all parsers
//	transfer   sources of bytes, and the scheduling of requests
//	staging    incomplete files on disk
//	meta       records in a database
//	object     complete files: publish, check, remove
//	chunkfile  files fetched by chunks, for readers and hydrations
//	hydrate    fetching what tables lack
//	store      reading (Expose), garbage collection (GC), space (reservations)
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
//	verdict    the result of a signature check of a table
//	image      a converted image: its documents, its origin and the names that resolved to it
//
// # Call paths
//
// Hydrating a table:
//
//	Hydrate → Engine.Hydrate → run → missing, reserve → fetch → attempt
//	  → Fetch.All → Pool.Ordered → fill → Fetch.Range → Source.Fetch   (bytes into a buffer)
//	  → decode, verify → Partial.Write                              (staged)
//	  → digest of the file → Objects.Publish → completed            (an object)
//
// Reading an incomplete file:
//
//	View.Await → exposure → File.Await → ensure → Pool.Acquire → fetchGroup → Fetch.Range → decode, verify → Partial.Write
//	  → an open file with the bytes
//
// # From blob to objects
//
//	                     ┌ ranges, concurrently, in any order
//	absent → partial ────┤
//	                     └ digests, in order, from memory → verified → fsync → rename → fsync
//	                       directory → record → complete
//
//	raw blob, file with chunks  a chunkfile.File: staged as one file, which is renamed to the object
//	uncompressed tar            staged as one file for each member, by the ranges in the table; the
//	                            headers are read again from verified bytes before publishing
//	compressed tar              staged as it is, and unpacked while it arrives or afterwards; members
//	                            are published when the digest of the blob and the diffID match
//	fragments                   staged at their offsets in the assembled file, which is published when
//	                            the digests of all fragments match
//
// A blob whose files all have chunks with digests is never fetched whole, and a chunk in an existing object
// is copied. The file becomes an object only when its own digest matches, so a wrong table cannot give a
// file a wrong name. If the table has the states of that digest between the chunks (verify.State), chunks
// are verified by these states, in any order and on all cores, which also verifies the file. Otherwise the
// bytes are hashed for the chunk and again for the file.
//
// Garbage collection and damage lead back to absent (package object). A crash at any point leaves the old
// or the new state, or a file without a record, which is hashed before it is used.
//
// # Isolation of tenants
//
// Users of a node do not trust each other, and registries may lie, stall or be slow.
//
// Request slots, buffers, unpackers and readers are shared fairly (transfer.Pool): a source that hangs keeps
// at most half of them while another source waits.
//
// Staged bytes are not shared. They belong to the group of sources that fetches them. Fetching the same blob
// from other sources is a separate transfer, and the first to finish makes the object. Sources belong to
// hydrations and exposures, never to a digest.
//
// Objects fetched with credentials are private to their sources. Other sources must prove that they have the
// bytes, by random ranges of a raw blob or by providing all bytes; until then object and chunks do not exist
// for them.
//
// A table shown when complete uses the directory of all objects, since its sources provided all of it. A
// table shown earlier may name digests that it must not read, so it uses a view: a directory of hard links
// to the objects that its sources provided or may have. Pages are still cached once.
//
//	not in the view ── Expose ──▶ exposed ── object, and allowed: compared, linked ──▶ in the view
//	       ▲                       │                                                          │
//	       └── no reference ───────┴──────── no reference and collected, or damaged ◀─────────┘
//
// The way in which a view fetches an exposed file is recorded before the file can be read, and never changes,
// whatever restarts or other pulls do. A file keeps its identity when it becomes an object only if all bytes
// that were read are right; a mismatch is recorded before the wrong bytes are dropped. The common view also
// has exposures, of lost files of complete tables and of models shown by versions without views; there the
// way of the first table counts for each digest.
//
// # Resuming
//
// A fetch of the same blob from the same group reuses staged bytes. Chunks with digests are verified again
// before they are read, and a blob that turns out to be wrong is fetched once more from scratch. After a
// failed fsync the whole partial is dropped.
//
// # Files
//
//	<dir>/store.db                        metadata (bbolt); schema in package meta
//	<dir>/store.db.damaged-<time>         a damaged database that was replaced; not read
//	<dir>/objects/sha256/<2>/<64 hex>     objects; a data-only lower layer of overlayfs
//	<dir>/views/<reference>/sha256/…      links to the objects of a view
//	<dir>/damaged/<64 hex>                damaged objects
//	<dir>/partial/<64 hex>-<32 hex>/      head, marks and staged files of a blob from a group; for a
//	                                      file of one chunk, the file itself
//	<dir>/partial/assembly-<64 hex>/      data of an assembly
//
// # Garbage collection
//
// An object lives while an unexpired reference or a running hydration needs it. The documents of an image
// (manifest, config, table) live as long as the image: an unreferenced image is removed after a week, or to
// meet the limits of TrimImages. All other objects are evicted, least recently used first, when space is
// short (Run), when a hydration needs space, or on request (GC). Nothing is removed while the needs of a
// reference are unknown. Views without a reference are removed first, because links keep the space of an
// object. Links are not synced; Present restores them before a mount.
//
// Space for exposed files is reserved, if Expose probes, until they are complete or hydrated.
//
// # Repair
//
// Store.Health reports damage and loss that are not due to a crash.
//
//	store.db lost or damaged     rebuilt from intact records (package meta); AddRef reads unrecorded
//	                             tables from their objects
//	file without a record        hashed before it is an object (package object)
//	object wrong, short, missing set aside and removed from all views; its tables are broken until
//	                             Hydrate, or Check of files set aside, repairs them
//	table wrong or missing       its references are unresolved until the table is stored again
//	partial                      verified before it becomes an object, as always
//
// # Locks
//
// Each package guards its own state. Order across packages: locks of package object before a transaction of
// package meta; Store.exposing before a transaction and before Store.mu; hydrate.Engine.mu before the locks
// of its hydrations; chunkfile.Set.mu before File.mu; File.opening before File.mu. The locks of the scheduler,
// transfer.Sources, offheap.Pool and chunkfile.Set.idleMu come last. No I/O in a transaction or while
// Store.mu is held.
package store

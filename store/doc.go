// Package store keeps the node's verified bytes: every file of every model once, by digest.
//
// Invariant: a byte leaves the store only after a digest over it has matched. Digests are
// compared in one function (verify.Compare); an object gets its name only after that.
//
// # Layout
//
// Imports go down only; TestLayout compares this picture with the code. The store itself is policy: it
// joins the parts, and nobody below knows of it.
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
//	durable    small files that are replaced whole, for all that the daemon and the commands keep
//	offheap    memory of buffers
//	boltfile   databases that may be damaged, read as bytes
//	verify     the one comparison of digests
//	filetable  what a parser makes of a format: pure data
//	transfer   where bytes come from, and who may have them brought when
//	staging    what is on its way, on the disk
//	meta       what has to be remembered, in a database
//	object     complete files: made, doubted, removed
//	chunkfile  files that come chunk by chunk, for readers and for jobs alike
//	hydrate    bringing what tables lack
//	store      who may read what, when (Expose), what stays (GC), what fits (reservations)
//
// # Words
//
//	object     a complete, verified file, named by the digest of its content
//	blob       a unit of transfer at the registry: a raw file, or an archive of files
//	table      the file table of a model: what files it has and where their bytes come from
//	contents   what a tar blob was found to contain, remembered by the digest of the blob
//	assembly   a file that is put together from parts, ranges of several blobs (fragments)
//	source     a repository that bytes come from, with a kind of credentials
//	group      the repositories that a table is brought from; also: chunks that are fetched together
//	hydration  bringing all that a table lacks from a group of sources
//	target     what one fetch brings: a file by its chunks, some small files, an archive
//	reference  what keeps the objects of a table: a snapshot or a pin
//	view       what may be read for one reference, by digest; the common view has all objects
//	exposure   a file of a view that can be read before it is an object
//	way        how an exposed file is brought: its chunks and their digests
//	verdict    that the model of a table was found to be signed as a policy wants it
//	image      a converted image: its documents, its origin and the names it was resolved by
//
// # A pull
//
//	Hydrate → Engine.Hydrate → bring → missing, reserve → fetch → attempt
//	  → Fetch.All → Pool.Ordered → fill → Fetch.Range → Source.Fetch   (bytes into a buffer)
//	  → decode, verify → Partial.Write                              (staged)
//	  → digest of the file → Objects.Publish → completed            (an object)
//
// # A read of what is not complete
//
//	View.ReadAt → exposure → File.ReadAt → want → Pool.Acquire → land → Fetch.Range → decode, verify → Partial.Write
//
// # From blob to objects
//
// A raw blob and a file with digests of chunks are both a chunkfile.File: staged as one file, which
// becomes an object by a rename. A plain tar is staged in pieces, each member in a file of its own, so
// its bytes are written once: the ranges are known from the table, whose makers indexed the headers. They
// are read again from the verified bytes before anything is published. A compressed tar is staged as it
// is, for resuming, and unpacked while it arrives, or afterwards if no unpacker is free; its members are
// published after the digest of the blob, and its diffID where the origin gives one, have matched.
// Fragments are staged in the places that their ranges have in a file, which becomes an object when the
// digests of all of them have matched; its own digest is computed over the verified bytes.
//
//	                     ┌ ranges, many at a time, any order
//	absent → partial ────┤
//	                     └ digests, in order, from memory → verified → fsync → rename → fsync
//	                       directory → record → complete
//
// A blob whose files all have chunks with digests is never fetched whole. A chunk that an object has is
// copied from there. The file becomes an object when its own digest has matched too: a table that lies
// can not give a wrong file a name. If the table has the states of that digest between the chunks
// (verify.State), a chunk is right if it leads from one state to the next, and when all do, the digest has
// matched: each byte is hashed once, in any order, on all cores. Otherwise it is hashed for its chunk, and once
// more for the file.
//
// Collecting goes back to absent, and so does damage: package object draws it. A crash at any point
// leaves the old state or the new one, and a file without a record, which is hashed before it is
// believed.
//
// # Strangers
//
// Those who share a node do not trust each other, and registries lie, stall and trickle.
//
// What is shared fairly: places of requests, buffers, unpackers and readers (transfer.Pool). A source
// that lets everything hang keeps no more than half of them while another waits.
//
// What is not shared: bytes on their way. They belong to the group of sources that brings them, so who
// asks elsewhere for the same blob brings it himself, and whoever is first makes the object for all. A
// registry that hangs or lies harms those who asked it. Sources never belong to a digest: they are those
// of the hydrations and exposures that use a File, and go with them.
//
// What is shared with conditions: objects whose bytes came with credentials. Who has other sources has to
// prove that they have the bytes too, by a few random ranges of a raw blob, or by bringing the rest; until
// then the object is not there for him, and neither are its chunks. Public objects are there for all.
//
// What is seen by name: a table that is shown when it is complete was had by who shows it, all of it; he sees
// the directory of objects. One that is shown before names digests that he may know and not have. He sees a
// view of his own, a directory that has second names (hard links) of the objects that his sources gave, or
// may have: each is there from when it is, and whatever else arrives is not. So the pages of a file are one
// copy for all, as before, and nobody can name what is another's.
//
//	not in the view ── Expose ──▶ exposed ── object, and may be had: compared, linked ──▶ in the view
//	       ▲                       │                                                          │
//	       └── no reference ───────┴──────── no reference and collected, or damaged ◀─────────┘
//
// What never changes: the way in which a view brings an exposed file. It is recorded before anybody can read
// the file, so no restart, no order of tables, no pull of others changes what is shown, and others may
// bring the same file in other ways meanwhile. A file keeps the identity under which it was read only if all
// that was read is right; that some was not is recorded before it is thrown away, or the object shown.
// The common view has exposures too: of what was lost of a table that was complete, and of models that
// versions without views showed. There one way counts for each digest, that of the table that was first.
//
// # Resuming
//
// What is staged is found again by who brings the same blob from the same group. Chunks with digests are
// verified again before a reader gets them, and a blob that turns out wrong is fetched once more from
// scratch. After an fsync that failed, nothing of the partial is believed.
//
// # On disk
//
//	<dir>/store.db                        metadata (bbolt), drawn in package meta
//	<dir>/store.db.damaged-<time>         one that was damaged; nothing reads it
//	<dir>/objects/sha256/<2>/<64 hex>     objects; a data-only lower layer of overlayfs
//	<dir>/views/<reference>/sha256/…      links to the objects of a view, as below objects
//	<dir>/damaged/<64 hex>                files that were found to be wrong
//	<dir>/partial/<64 hex>-<32 hex>/      head, marks and staged files of one blob from one group
//	<dir>/partial/assembly-<64 hex>/      data of a file that is being put together
//
// # Collecting
//
// An object lives while a reference that has not expired, or a running hydration, needs it.
// The documents of images (manifest, config, table) live as long as the image: an image that nothing
// refers to goes after a week, or when those of its registry, or of all, take too much (TrimImages). All else is
// evictable, oldest use first, and goes when space runs short (Run), when a hydration needs
// room, or when asked (GC). Nothing goes while it is not known what a reference needs. Views without a
// reference go first, as an object takes its room while it has a name. Links are not synced: who mounts a
// view puts back what a power cut took (Present).
//
// What is exposed has its room reserved, if Expose probes, until it is there or the hydration of its table
// takes that over.
//
// # Doubt
//
// What was damaged or lost outside of a crash is found, set aside, and brought again. Doubts says
// what there is of it.
//
//	store.db lost or damaged     rebuilt from what is whole (package meta); AddRef reads tables
//	                             that are not recorded from their objects
//	file without a record        hashed before it is an object (package object)
//	object wrong, short or gone  set aside, out of all views, its tables broken: Hydrate, and Check as far as what
//	                             was set aside is right, mend them
//	table wrong or gone          its references are unresolved until somebody puts it
//	partial                      its bytes are verified before they are an object, in any case
//
// # Locks
//
// Each package guards its own state. Across them: those of package object before a transaction of package
// meta; Store.exposing before a transaction and before Store.mu; hydrate.Engine.mu before its hydrations';
// chunkfile.Set.mu before File.mu; File.opening before File.mu. The lock of the scheduler, and those of
// transfer.Sources, are the last. No I/O in a transaction, and none while mu is held.
package store

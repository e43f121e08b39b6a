// Package store keeps the node's verified bytes: every file of every model once, by digest.
//
// Invariant: a byte leaves the store only after a digest over it has matched. Digests are
// compared in one function (verify); an object gets its name only after that.
//
// # Words
//
//	object     a complete, verified file, named by the digest of its content
//	blob       a unit of transfer at the registry: a raw file, or an archive of files
//	table      the file table of a model: what files it has and where their bytes come from
//	contents   what a tar blob was found to contain, remembered by the digest of the blob
//	assembly   a file that is put together from parts, ranges of several blobs (fragments)
//	hydration  bringing all blobs of a table
//	job        bringing one blob; one at a time for each blob, however many wait
//	chunk      a range of a file or blob that is fetched, resumed and held in memory by itself, at
//	           most 4 MiB; in a table, one that has a digest
//	group      chunks of a table that are fetched together, as one chunk
//	lazy file  a file that can be read before it is an object
//	unit       what one job brings: a blob, or a file by its chunks
//	partial    the chunks of a blob that are there before the blob is complete
//	reference  what keeps the objects of a table: a snapshot or a pin
//	image      a converted image: its documents, its origin and the names it was resolved by
//
// # From blob to objects
//
// A raw blob is staged as one file and becomes an object by a rename. A plain tar is staged
// in pieces, each member in a file of its own, so its bytes are written once: the ranges are
// known from the table, whose makers indexed the headers. They are read again from the
// verified bytes before anything is published. A compressed tar is staged as it is, for
// resuming, and unpacked while it arrives; its members are published after the digest of
// the blob, and its diffID where the origin gives one, have matched. Fragments are staged in
// the places that their ranges have in a file, which becomes an object when the digests of all
// of them have matched; its own digest is computed over the verified bytes.
//
//	                     ┌ ranges, many at a time, any order
//	absent → partial ────┤
//	                     └ digests, in order, from memory → verified → fsync → rename → fsync
//	                       directory → record → complete
//
// A blob whose files all have chunks with digests is never fetched whole: each file is brought by
// itself, in groups of chunks, each verified before it is staged. A chunk that an object has is
// copied from there. The file becomes an object when its own digest has matched too: a table that
// lies can not give a wrong file a name.
//
// Only collecting goes back to absent. An object that Check finds damaged counts as absent until
// a new file takes its place. A crash at any point
// leaves the old state or the new one: a file without a record was verified and is adopted
// by Open, and a record is made after its file is durable.
//
// Memory is bounded by the buffers: twice Options.Connections chunks for all jobs that somebody
// waits for, half of that for the others, 8 for readers. A job takes buffers in the order of its
// chunks, so the chunk that its digest waits for always has one, and jobs can not block each other.
//
// # Reading early
//
//	                 Expose                        job: file verified
//	not readable ───────────▶ lazy: ReadAt ──────────────────────────▶ object
//	                 ▲             │ RemoveRef of the last reference
//	                 └─────────────┘
//
// ReadAt of a lazy file returns bytes whose chunk was verified, fetching it if need be; of a file
// without chunks, it waits for the object. Who reads goes first (gate), in groups that nobody else
// has on its way (flight); who reads on is read ahead for; jobs that nobody waits for stand still
// meanwhile, and keep to SetRate and Pause. Who has claimed a group has its buffer and never waits
// for another's group, so there are no circles.
//
// Only one way to bring a file is known to readers. A table that has other chunks for a digest can
// not change what readers of the first one see; it is shown when it is complete.
//
// # Resuming
//
// A mark per chunk says absent, written or synced. Written bytes survive the death of the
// process but maybe not that of the machine, so a partial also names the boot in which its
// marks were made: after a reboot only synced chunks count. What was there before is hashed
// again from the disk, and a blob that turns out wrong is fetched once more from scratch.
//
// # On disk
//
//	<dir>/store.db                        metadata (bbolt), see below
//	<dir>/objects/sha256/<2>/<64 hex>     objects; a data-only lower layer of overlayfs
//	<dir>/partial/sha256-<64 hex>/        head, marks and staged files of one blob
//	<dir>/partial/assembly-<64 hex>/      data of a file that is being put together
//
// # Schema
//
// Values are JSON. Keys are digests unless said otherwise. TestSchema compares this drawing
// with a store.
//
//	meta
//	  version     1
//	objects
//	  <digest>    size used damaged
//	contents
//	  <blob>      list of: name type mode modtime size offset linkName digest
//	assembled
//	  <recipe>    digest
//	tables
//	  <digest>    objects logical complete used
//	images
//	  <manifest>  manifest config table origin refs size privateNames created used
//	refs
//	  <name>      name table created expires sources size inodes
//	chunks
//	  <chunk>
//	shown
//	  <digest>    identity
//
// A recipe is the digest over the JSON of a Source with parts; the value is what the file
// turned out to be. The chunks bucket says where the bytes of a chunk are: the key is its digest, 32
// bytes; the value is the digest of an object and the offset in it, 32 and 8 bytes, big endian. An
// entry may be outdated: bytes that are copied are verified. The shown bucket has the identity under
// which a file was read before it was complete, once it is known to be the right one (LazyFile). A reference is named snapshot/<id> or pin/<reference>, and
// has the names of its sources. Each object counts at the oldest
// reference that needs it, once, so that the sum over snapshots is what is on the disk.
//
// # Collecting
//
// An object lives while a reference that has not expired, or a running hydration, needs it.
// The documents of images (manifest, config, table) live as long as the image. All else is
// evictable, oldest use first, and goes when space runs short (Run), when a hydration needs
// room, or when asked (GC).
//
// # Locks
//
// gcMu before a bbolt transaction before mu before lazyFile.mu before partial.mu; exposing before a
// bbolt transaction; lazyFile.opening before gcMu; partial.syncing before partial.mu. No I/O in a
// bbolt transaction, and none while mu is held.
package store

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
//	chunk      4 MiB of a blob: the unit of fetching, resuming and memory
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
// Only collecting goes back to absent. An object that Check finds damaged counts as absent until
// a new file takes its place. A crash at any point
// leaves the old state or the new one: a file without a record was verified and is adopted
// by Open, and a record is made after its file is durable.
//
// Memory is bounded by the buffers: twice Options.Connections chunks for all jobs together.
// A job takes buffers in the order of its chunks, so the chunk that its digest waits for
// always has one, and jobs can not block each other.
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
//	  <name>      name table created expires size inodes
//
// A recipe is the digest over the JSON of a Source with parts; the value is what the file
// turned out to be. A reference is named snapshot/<id> or pin/<reference>. Each object counts at the oldest
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
// gcMu before a bbolt transaction before mu; partial.syncing before partial.mu. No I/O in a
// bbolt transaction, and none while mu is held.
package store

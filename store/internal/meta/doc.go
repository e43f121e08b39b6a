// Package meta keeps the records of a store in a bbolt database: its objects, what tables need, references to
// tables, and the locations of known bytes. It does not access other files.
//
// # Schema
//
// Values are JSON, except in objects, tables and chunks, of which there can be millions, chains, and version. All but
// those in chunks have a checksum in front. Keys are digests unless noted. TestSchema compares this drawing with a
// database.
//
//	meta
//	  version     3
//	  rebuilt     time
//	  scrub       began ended whole last done
//	objects
//	  <digest>
//	contents
//	  <blob>      list of: name type mode modtime size offset linkName digest
//	assembled
//	  <recipe>    digest
//	tables
//	  <digest>
//	images
//	  <manifest>  digest config table origin refs size privateNames read imported created used
//	refs
//	  <name>      name table created expires sources
//	chunks
//	  <chunk>
//	verdicts
//	  <digest>    list of: policy signers time
//	ways
//	  <file>      identity tables wrong
//	orders
//	  <digest>    list of: sources ranges
//	chains
//	  <blob>
//
// The value of version is text. It also stands, as a line, in the file <path>.schema: a version of ballast must be able
// to name the schema of any other, also while a daemon has the database open.
//
// A recipe is the digest of the JSON of a Source with parts; its value is the digest of the assembled file. Numbers
// are big endian, and digests their 32 bytes, also as keys of objects. A value in objects is an objectHead and the
// names of sources that may have a private object, one on each line; one in tables is a tableHead and the digests of
// its objects. A key in chunks is the digest of a chunk; the value is the digest of an object and the offset of the
// chunk in it (8 bytes). Entries may be outdated: copied bytes are verified. A value in chains is the name of the key
// that signed the chain of states of a blob, none if it was made here, a line feed, and the states (verify.Chain).
//
// A value in ways has the identity under which a file of a view is read before, and after, it is complete, the tables
// that show it in this way, and how often wrong bytes were read, which changes the identity. Its key is a digest,
// preceded by the name of the view and a space except in the common view. A value in verdicts lists the policies that
// the signatures of a table or manifest satisfy, and one in orders the orders in which a table is read from groups of
// sources. A reference is named snapshot/<id>, pin/<reference> or origin/<digest>. Each object counts for one of the
// references that need it, so that the sum over snapshots is the disk usage.
//
// The index, in memory, knows which records need which objects. It is built when the database is opened and
// updated with the records, so the cost of a query does not depend on the size of the database.
//
// # Damage
//
// Open reads and checks the whole file (package boltfile) before bbolt maps it, because a changed record could
// name wrong objects. The index is built in the same pass. The checksum of a value (CRC-32C, 4 bytes, big endian)
// covers its bucket, its key and its JSON or other bytes.
//
//	sound   ──────────────────────────────────────▶ open
//	missing, and no objects ──────────────────────▶ open, empty
//	missing or empty ──────────▶ rebuilt: empty ──▶ open
//	damaged ──▶ set aside ─────▶ rebuilt: records with right checksums ──▶ open
//	other schema ─────────────────────────────────▶ errdefs.ErrFailedPrecondition
//
// What a rebuilt database lacks is recovered elsewhere: objects by hashing files, the needs of a table from
// the table, references from snapshots. A reference is unresolved while the needs of its table are unknown;
// until then nothing is removed.
package meta

// Package meta keeps what a store has to remember, in a bbolt database: what objects there are, what
// tables need, what refers to tables, and where bytes that are known can be found. It knows nothing of
// files; a value is as true as its maker was.
//
// # Schema
//
// Values are JSON behind a checksum, but those of chunks. Keys are digests unless said otherwise.
// TestSchema compares this drawing with a database.
//
//	meta
//	  version     2
//	  rebuilt     time
//	objects
//	  <digest>    size used private
//	contents
//	  <blob>      list of: name type mode modtime size offset linkName digest
//	assembled
//	  <recipe>    digest
//	tables
//	  <digest>    objects logical complete used partly broken
//	images
//	  <manifest>  manifest config table origin refs size privateNames created used
//	refs
//	  <name>      name table created expires sources
//	chunks
//	  <chunk>
//	shown
//	  <digest>    identity
//	verdicts
//	  <digest>    list of: policy signers time
//	ways
//	  <file>      identity tables wrong
//
// A recipe is the digest over the JSON of a Source with parts; the value is what the file turned out
// to be. The chunks bucket says where the bytes of a chunk are: the key is its digest, 32 bytes; the
// value is the digest of an object and the offset in it, 32 and 8 bytes, big endian. An entry may be
// outdated: bytes that are copied are verified. The ways bucket has the identity under which a file of a
// view is read before it is complete, and afterwards, the tables that show it so, and how often that was
// wrong, which makes other identities of it; its key is a digest, with the name of the view and a space
// before it but for the common view. The shown bucket is that of earlier versions. The
// verdicts bucket says by which policies the model of a table, or what a manifest names, was found to be
// signed. A reference is named
// snapshot/<id> or pin/<reference>. Each object counts at one of the references that need it, so that
// the sum over snapshots is what is on the disk.
//
// What is needed by what follows from the records of objects, tables, references and images. It is kept in
// memory (the index), made when the database is opened, and changes with the records: a request costs the same
// however much there is.
//
// # Doubt
//
// Open reads the whole file (package boltfile) before bbolt maps it: a record that was changed can name
// other objects than those that are needed. The
// checksum of a value (CRC-32C, 4 bytes, big endian) is over its bucket, its key and its JSON.
//
//	sound   ──────────────────────────────────────▶ open
//	missing, and nothing to know of ──────────────▶ open, empty
//	missing or empty ──────────▶ rebuilt: empty ──▶ open
//	damaged ──▶ set aside ─────▶ rebuilt: records whose checksum is right ──▶ open
//	other schema ─────────────────────────────────▶ errdefs.ErrFailedPrecondition
//
// What a rebuilt database does not know is found out by others: which files are objects by hashing
// them, what a table needs from the table, what is referred to from the snapshots. A reference is
// unresolved as long as it is not known what its table needs; nothing is collected meanwhile.
package meta

// Package object keeps objects: complete, verified files, named by the digest of their content. It makes
// them of staged files, links them to local files, reads, checks and removes them.
//
//	staged file ── fsync → rename → fsync directory → record ──▶ object ── not needed ──▶ removed
//	                                                               │ ▲
//	file without a record, or wrong size or digest ── unrecorded ──┘ └── right digest: an object again
//	                                                      │ wrong digest
//	                                                      ▼
//	                                             damaged/<64 hex>, without a record
//
// A file below objects is an object if it has a record of its size. Files without a record are left by a
// crash between rename and record, or by the loss of the database. They are hashed before Has reports them:
// when they are opened or claimed, for a table by Recover, or by RecoverAll. A wrong file is moved away and
// removed from all views at once, because overlayfs reads the directory directly: the next open gets ENOENT,
// or the lazy layer below. Its tables are marked as broken, so that a pull repairs them. Check hashes files
// that were set aside again, since a disk may fail temporarily. They are removed when they are replaced or
// not needed, or when space is needed.
//
// # Comparing files with records
//
// There can be millions of files, so Open looks at none. Compare runs in the background, with rests, once after each
// start, and for Check. Until it comes to a file, who uses the object finds the difference: Has compares the size,
// and a file without a record is found by its name when it is opened, claimed or recovered. Wrong bytes of the right
// size are found by reading: CheckOne, for a scrub, and Check.
//
// The record of an object names the sources that may have it, if it was fetched with credentials. For the
// case that the record is lost, an attribute of the file has the same names.
//
// A view has hard links to some objects (Grant). They are removed with the object, or with the reference that
// the view is named after.
//
// # Locks
//
// Objects.collecting before a transaction of the database before Objects.mu; unrecordedFile.busy before all of them.
// No file is read or written, and nothing is waited for, while mu is held.
package object

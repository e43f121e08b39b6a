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
// There can be millions of files, so Open does not look at all of them. Compare runs in the background, with rests.
// It compares names and sizes with the records, directory by directory, and records the state of a directory (inode,
// times of change) in which nothing differs. A directory that has this state when the store is opened has the same
// names as then, and its records are the same too:
//
//   - Files come and go with a change of the times of the directory. Times have a granularity, so a state is
//     recorded only of a directory that has not changed for some seconds.
//   - A transaction that removes a record removes the recorded state of its directory: the file is removed later, and
//     a power cut can undo that, and the change of the times with it. A file without a record always comes with such
//     a transaction, or with a change of the times: a directory is synced before its new objects are recorded.
//   - A rebuilt database has no states.
//
// So Open finds missing files and files without a record as if it had read all directories. What it leaves to Compare
// is a changed size, in directories that have not changed and in those after the first sizesAtOpen files: it is due to
// damage of a file in place, like wrong bytes, which only reading finds. Has compares sizes at each use.
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

// Package object keeps objects: complete, verified files, named by the digest of their content. It
// makes them of staged files, links them to files of others, reads them, doubts and removes them.
//
//	staged file ── fsync → rename → fsync directory → record ──▶ object ── nothing needs it ──▶ gone
//	                                                               │ ▲
//	file without a record, or wrong size or digest ── doubt ───────┘ └── hashed right: again an object
//	                                                  │ hashed wrong
//	                                                  ▼
//	                                         damaged/<64 hex>, and no record
//
// A file below objects is believed if it has a record of its size. One without is as good as its
// maker: a crash between rename and record leaves it, and so does a database that was lost. It is
// hashed before Has knows it: when it is opened or claimed, for a table by Prove, or by ProveAll. A file that is wrong
// leaves the directory, and all views, at once, since overlayfs reads there without asking: the next open gets ENOENT,
// or the lazy layer below. Its tables are broken, so that a pull heals them. What was set aside is
// hashed again by Check, and is an object again if it is right: a disk that fails to read once is no
// verdict. It goes for good when a new file takes its place, nothing needs it, or room is needed.
//
// Who may have an object that came with credentials is in its record, and for when that is lost, in an
// attribute of its file.
//
// A view has second names of some objects (Grant). They go with the object, or with the reference that the
// view is named after.
//
// # Locks
//
// Objects.collecting before a transaction of the database before Objects.mu; doubt.busy before all of
// them. Nobody holds mu while he reads or writes files, or waits.
package object

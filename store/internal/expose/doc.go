// Package expose lets files be read in views, also before they are objects.
//
//	Expose ─▶ exposure ── objects, Arrived ──▶ link in the view
//	             │ read: View.Await ─▶ chunkfile.File, or the end of a hydration
//
// A view has the files that may be read for one reference; the common view has all objects. Files that are
// complete are hard links in the directory of the view (package object). The others are exposures: a reader
// waits for the chunks that it needs. The chunks with which a file is exposed are its way. The database has the
// way of each exposed file (meta.PutWays) before the file can be read, and it does not change, whatever restarts
// or other pulls do, because the kernel keeps pages of the file by an identity that follows from it.
//
// The first reads of incomplete files are recorded (recording), in their order, for each table and group of sources.
// What reads a complete file is not seen.
//
// The store decides who may expose what, reserves space, and withdraws exposures without a reference.
package expose

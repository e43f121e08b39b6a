// Package staging keeps what is not complete: the bytes of blobs on their way, and a mark for each
// chunk that says how far it is to be trusted.
//
//	absent → written → synced
//
// Written bytes survive the death of the process but maybe not that of the machine, so a partial also
// names the boot in which its marks were made: after a reboot only synced chunks count. A blob of one chunk has no
// marks: it names the boot when the chunk was written, and is absent after another one. After an fsync
// that failed nothing is believed that was written since the last one: the kernel may have dropped the
// bytes and report them as read well.
//
// Nothing here verifies anything. Each blob has a place for each group of sources that brings it.
package staging

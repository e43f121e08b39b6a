// Package staging keeps incomplete files: the bytes of blobs being fetched, and a mark for each chunk.
//
//	absent → written → synced
//	   ↑        │         │     a reboot
//	   └────────┘         └──→ old
//
// Written bytes survive the end of the process, but maybe not that of the machine. A partial therefore
// records the boot in which its marks were made, and after a reboot only synced chunks count. A blob of one
// chunk has no marks: its head is set when the chunk is written, and after a reboot the chunk
// is absent. After a failed fsync all bytes written since the last one are dropped: the kernel may have lost
// them and still return them on reads. Very many members of an archive are synced at once, with the file system.
//
// Nothing is verified here. Who verified a chunk before it was written may read it at once while it is synced: only
// root can change the files, the kernel has reported that the disk has the bytes, and no power cut has come since
// then. What lacks one of these is verified before it is read: a written chunk, whose writeback may have failed after
// the process was killed, and an old one, because disks lie about what they had before a power cut. Disks rot
// nevertheless, and tools that repair or copy file systems lose bytes, so whoever makes a file of the chunks verifies
// all that an earlier process wrote. A chunk that is not whole in its files is absent, whatever its mark.
//
// Each blob has a directory for each group of sources that provides it.
package staging

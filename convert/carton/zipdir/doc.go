// Package zipdir reads the directory of a zip archive, with few reads and without trust.
//
//	Read       end record ─▶ directory ─▶ entries       two reads, whatever the archive holds
//	Locate     local header of one entry ─▶ its data    one read an entry, when it is needed
//	NewReader  the data of an entry ─▶ its content
//
// Zip readers differ in what they take for true: the first or the last end record, the
// directory or the local headers, the first or the last of two equal names. An archive that
// two readers can read in two ways is refused here. In detail:
//
//   - The end record ends at the last byte, and no other record could be taken for it. Before
//     it are, without a gap, the records of zip64, the directory, and the entries from byte 0
//     on. The fields of zip64 and those they stand for do not contradict each other.
//   - No entries overlap, and no bytes between them belong to none. A data descriptor has its
//     place behind the data; the sizes are those of the directory.
//   - A local header says the same as the directory: flags, method, name, sizes, checksum.
//   - Names are clean (store.CleanPath), and each is there once.
//   - Methods are stored, deflate and zstd. A size that no data of that length could have by
//     its method is refused.
//   - Entries are files, symbolic links, or directories without data; never encrypted.
//
// Neither the number of entries nor the directory is above a limit. Modes and times are not
// read: writers leave them empty.
// https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
package zipdir

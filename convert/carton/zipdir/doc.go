// Package zipdir reads the directory of an untrusted zip archive with few reads.
//
//	Read    end record ─▶ directory ─▶ entries       two reads, whatever the archive holds
//	Locate  local header of one entry ─▶ its data    one read per entry, when needed
//	Open    local header and data of one entry ─▶ its content
//
// Zip readers differ in what they use: the first or the last end record, the directory or the local
// headers, the first or the last of two equal names. Archives that two readers can read differently
// are refused. In detail:
//
//   - The end record ends at the last byte, and nothing else could be read as one. Before it
//     are, without a gap, the records of zip64, the directory, and the entries from byte 0
//     on. The fields of zip64 and those they stand for do not contradict each other.
//   - Entries do not overlap, and every byte between them belongs to one. A data descriptor
//     follows the data; it is compared with the directory when the content is read to its end.
//   - A local header agrees with the directory: flags, method, name, sizes, checksum.
//   - Names are clean (filetable.CleanPath) and unique.
//   - Methods are stored, deflate and zstd. A size that data of that length cannot have with
//     its method is refused.
//   - Entries are files, symbolic links, or directories without data; never encrypted.
//
// The number of entries and the size of the directory are limited. Modes and times are not read:
// writers leave them empty.
//
// The reader of the standard library (archive/zip) cannot read the directory of such an archive: it
// allocates memory for as many entries as the end record states, up to a quarter of the size that
// the server states; it reads the directory in steps of 4 KiB, each a request, without a context;
// and it accepts most of what is refused here.
//
// https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
package zipdir

// Package filetable is the file table of a model, and all that a parser of a format needs to make
// one. It is pure data: nothing here knows of a store, a disk or a network.
//
// A Table lists every file with its attributes and where its bytes come from: a whole blob, a range
// of an uncompressed tar, chunks that are compressed one by one, inline bytes, or several of these in
// a row. An archive that has to be unpacked before its files are known is one Unpack. Tables are
// encoded as canonical JSON, and the digest over that names them; Decode validates, so that whoever
// has a Table need not doubt its paths, sizes and ranges.
package filetable

// Package filetable defines the file table of a model and the helpers that parsers of model formats
// use to build one. It is pure data: the package does not use the store, the disk or the network.
//
// A Table lists every file with its attributes and the source of its bytes: a whole blob, a range
// of an uncompressed tar, chunks that are compressed individually, inline bytes, or a sequence of
// these. An archive whose files are unknown until it is unpacked is an Unpack. Tables are encoded
// as canonical JSON, and the digest of the encoding identifies them. Decode validates paths, sizes
// and ranges, so code that has a Table does not check them again.
package filetable

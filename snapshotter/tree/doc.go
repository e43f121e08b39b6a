// Package tree shows the files of a table in a directory without copying their bytes.
//
// The bytes are in objects, files named by their digest, which somebody else keeps. A file of
// the table that is empty, a directory or a symbolic link is made as it is. For any other the
// backend says how it gets its content:
//
// Stubs: each file is an empty, sparse file of the right name, mode, mtime and size, with
// the extended attributes trusted.overlay.metacopy and trusted.overlay.redirect, the latter
// naming the object. It has content in an overlay mount with the objects as data-only lower
// layer only (Linux 6.5); read by itself it is zeros. The object need not be there yet.
//
// Links: each file is a hard link to its object. Works everywhere, but a link has the mode
// and the mtime of the object: a file whose mode differs is copied if it has at most 1 MiB,
// otherwise it has the mode of the object. Directory and objects must be on one file system.
//
// What is there and well is left as it is, so that showing again mends a tree, also one that
// is in use. A file is replaced by a rename. Files are durable before their directories are.
package tree

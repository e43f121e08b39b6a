// Package tree makes a directory with the files of a table, without copying their bytes.
//
// The bytes are in objects: files named by their digest, which the caller keeps. Empty files,
// directories and symbolic links need no object. Other files depend on the backend:
//
// Stubs: each file is a sparse file with the name, mode, owner, mtime and size of the original and no data.
// The extended attributes trusted.overlay.metacopy and trusted.overlay.redirect name its object. Its
// content is visible in an overlay mount with the objects as data-only lower layer (Linux 6.5); read
// directly it is zeros. The object need not exist yet.
//
// Links: each file is a hard link to its object. This works everywhere, but a link has the mode, the owner and
// the mtime of the object. A file with another mode is copied if it has at most 1 MiB, otherwise it
// gets the mode of the object, which everybody can read. Directory and objects must be on one file system.
//
// Correct files are left as they are, so showing a tree again repairs it, also while it is in use. Files are replaced
// by a rename. They are durable before their directories are. Parts of a large tree are made concurrently.
package tree

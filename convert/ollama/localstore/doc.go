// Package localstore reads the models of an Ollama installation on this machine, and never writes
// to them.
//
//	blobs/sha256-<hex>                           blobs and, since 0.40, manifests
//	blobs/sha256-<hex>-partial, *-partial-<n>    running downloads; ignored
//	manifests/<host>/<namespace>/<model>/<tag>   the manifest, until 0.39
//	manifests-v2/…                               since 0.40: a link to the manifest's blob, or the manifest
//
// If both layouts have a model, that of 0.40 is used. It names the public registry ollama.com, and
// writes a colon in the name of a host as %3A; a Name has registry.ollama.ai and a colon for both
// layouts. Names are compared without case.
//
// # Trust
//
// No input is trusted. The directory can belong to another user, and change while it is read. All
// access goes through an os.Root, so nothing outside is opened. Blobs are regular files: a link in
// place of one is refused. A link in place of a manifest must be relative and lead to a blob of the
// same store, and the manifest must match the digest in the name of the blob. Entries with invalid
// names, directories that are links, and names that begin with a dot are not listed. Small blobs
// are verified when they are read whole; large ones are not, and must be verified when they are
// imported.
package localstore

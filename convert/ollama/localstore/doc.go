// Package localstore reads the models that an Ollama on this machine has, and never writes to
// them.
//
//	blobs/sha256-<hex>                           blobs and, since 0.40, manifests
//	blobs/sha256-<hex>-partial, *-partial-<n>    downloads that run; ignored
//	manifests/<host>/<namespace>/<model>/<tag>   the manifest, until 0.39
//	manifests-v2/…                               since 0.40: a link to the manifest's blob, or the manifest
//
// Where both layouts have a model, that of 0.40 counts. There the public registry is called
// ollama.com, and a colon in the name of a host is %3A; in a Name it is registry.ollama.ai and
// a colon in both. Names are compared without case.
//
// # What is trusted
//
// Nothing. The directory can belong to somebody else, and change while it is read. All access
// goes through an os.Root, so nothing outside is opened. Blobs are regular files: a link in the
// place of one is refused. A link in the place of a manifest must be relative and lead to a blob
// of the same store, and the manifest must have the digest that the name of the blob says. What
// has no valid name, a directory that is a link, and what begins with a dot is not listed.
// Small blobs are verified when they are read whole; large ones are not, and must be when they
// are taken over.
package localstore

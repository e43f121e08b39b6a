// Package jobs runs all work of the daemon on models: prefetches, imports from archives or an
// Ollama on this machine, and, in the background, the rest of models that are shown before they are
// complete. It lists this work, all other downloads of the store, and verifications, for "ballast
// status".
//
// A job belongs to the daemon and not to the client that requested it: a client can disconnect, and
// clients that request the same model share one job. A pull belongs to containerd: when it
// disconnects, the store continues for a while, since the kubelet comes back; until then, or until
// Stop, the download is listed as abandoned.
//
// # Sources
//
// A model is downloaded from the sources recorded for its references, in this order: the repository
// that containerd pulls from, the reference of a prefetch, a pin or a repair. Their
// names are recorded for the snapshot or the pin, and used whenever the rest has to be downloaded
// later. Other registries that served the same image to other clients are not used: anyone can run
// a registry that serves a manifest, and its blobs can hang or be wrong. Only for a table without
// references, or without recorded names, all names that its images were resolved from are used.
package jobs

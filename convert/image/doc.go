// Package image makes the image that stands for a model: what a registry of ours answers, and
// what stock containerd can pull and unpack.
//
// Build is a pure function. The same origin gives the same bytes on every node: there is no
// clock, no reference, no name of a machine and no order of a map in them.
//
//	manifest   OCI image manifest; artifactType of ModelPack; annotations dev.ballast.*: the
//	           format and the digest of the origin, the version of the mapping, the context length
//	config     OCI image config and ModelPack config in one JSON: os, architecture, rootfs;
//	           descriptor, config, modelfs; dev.ballast.origin
//	layers     one blob layer for each blob of the origin, with its digest and size; then the
//	           table layer, which is the file table
//
// Blob layers are never downloaded as layers: containerd asks the snapshotter for each, and
// ours says that it is there. They make sizes, copies and collection of the image honest. The
// diffID of one is store.BlobDiffID of its digest, and that of the table layer is its digest.
// Of more than 256 blobs only the 32 largest are in the manifest, and no empty blobs, which containerd
// refuses; all are in the table.
//
// # The origin
//
// The manifest and the config of the origin are in the image byte for byte, so that the origin can be
// made again, and what of it has no place in ModelPack is not lost: in dev.ballast.origin of the
// config, in base64, unless a file in the table is the same (Ollama's ollama/manifest.json, the
// MANIFEST of a carton). Documents of more than 1 MiB are files below origin/. Documents gives them
// back, compared with the digest of the origin.
//
// The member "config" is shared by both kinds of config. Only the members that ModelPack
// defines are written to it, so nothing of an origin becomes an environment variable, a
// command, a volume or a label of a container.
//
// The platform is linux/amd64 for every model: digests shall be equal on all nodes, and
// containerd does not compare the platform of a manifest that it pulls without an index.
package image

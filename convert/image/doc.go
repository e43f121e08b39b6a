// Package image builds the image that represents a model: an image that a ballast registry serves and
// that an unmodified containerd can pull and unpack.
//
// Build is a pure function. The same origin gives the same bytes on every node: they contain no time,
// reference, machine name or map order.
//
//	manifest   OCI image manifest; artifactType of ModelPack; annotations dev.ballast.* with the format
//	           and digest of the origin, the mapping version, and the context length
//	config     OCI image config and ModelPack config in one JSON object: os, architecture, rootfs;
//	           descriptor, config, modelfs; dev.ballast.origin
//	layers     one blob layer for each blob of the origin, with its digest and size; then the table
//	           layer, which is the file table
//
// Blob layers are never downloaded as layers: the snapshotter reports that they exist. They make the size
// of the image, copies of it and garbage collection correct. The diffID of a blob layer is
// filetable.BlobDiffID of its digest; the diffID of the table layer is its digest. If there are more than
// 256 blobs, only the 32 largest are in the manifest, and never empty blobs, which containerd refuses. The
// table has all of them.
//
// # The origin
//
// The image contains the manifest and the config of the origin byte for byte, so that the origin can be
// recreated and information without a place in ModelPack is kept: in dev.ballast.origin of the config, in
// base64, unless a file in the table is the same (ollama/manifest.json, the MANIFEST of a carton).
// Documents of more than 1 MiB are files below origin/. The function Documents returns them, verified
// against the digest of the origin.
//
// The member "config" belongs to both kinds of config. Only members defined by ModelPack are written, so
// nothing in an origin becomes an environment variable, command, volume or label of a container.
//
// The platform of every model is linux/amd64, so that digests are equal on all nodes. containerd does not
// check the platform of a manifest pulled without an index.
package image

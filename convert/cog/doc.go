// Package cog parses the managed weights of Cog.
//
// Managed weights are an OCI artifact with the artifactType application/vnd.cog.weight.v1. Its layers are tars of OCI
// types, which can be unpacked in any order: no file is in two of them, and none deletes another. Its config has the
// name of the weights, the directory where a container of Cog has them, and an index of all files: path, size, digest
// and layer.
// https://github.com/replicate/cog/blob/v0.22.0/specs/draft-weights.md
//
// # Paths
//
// Paths in a layer are relative to the root of the model. The directory in the config is not used: a pod decides where
// it mounts a model.
//
// # Digests
//
// The files of uncompressed layers get the digests of the index, and the store compares them with the content. An
// index that names another layer, a file that is not in its layer, another size, or not all files of a layer, is
// refused. Files of a compressed layer are known when it is unpacked: its blob in the table has the digest of its part
// of the index (filetable.Blob.Files), with which the store compares them before it shows the model.
package cog

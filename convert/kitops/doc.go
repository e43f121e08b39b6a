// Package kitops parses ModelKits of KitOps.
//
// A ModelKit is an OCI artifact whose config is a Kitfile in JSON. A layer is a tar, optionally
// compressed, of the model, a part of it, a dataset, code, documents or prompts; or one raw file:
//
//	application/vnd.kitops.modelkit.<kind>.v1.<tar|tar+gzip|tar+zstd|raw>
//
//	model      weight
//	modelpart  by its name: weight, weight.config, code or doc
//	dataset    dataset
//	code       code, including prompts
//	docs       doc
//
// # Paths
//
// Paths in an archive are relative to the root of the kit, and unchanged. A raw layer has its path
// in an annotation or in the Kitfile. In kits of early 2024, whose Kitfile does not have the
// digests of layers, paths are relative to the directory in the Kitfile: an archive of one file is
// placed there, one of a directory is not moved.
//
// The Kitfile is a file of the model with that name, without the digests and diffIDs added by
// packing: the input of "kit pack". JSON is valid YAML. The config is kept byte for byte as a
// document of the origin.
//
// # Refused kits
//
// A kit whose model is in another ModelKit, one with compressed raw layers, and one with a layer of
// another format are refused with an error. Datasets that are elsewhere according to the Kitfile
// are not downloaded.
package kitops

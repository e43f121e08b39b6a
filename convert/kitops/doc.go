// Package kitops parses ModelKits of KitOps.
//
// A ModelKit is an OCI artifact whose config is a Kitfile in JSON. A layer is a tar, compressed or
// not, of the model, a part of it, a dataset, code, documents or prompts; or one raw file:
//
//	application/vnd.kitops.modelkit.<kind>.v1.<tar|tar+gzip|tar+zstd|raw>
//
//	model      weight
//	modelpart  as its name says: weight, weight.config, code or doc
//	dataset    dataset
//	code       code; prompts are code too
//	docs       doc
//
// # Where files are
//
// Paths in an archive are relative to the root of the kit, and stay as they are. A raw layer has its
// path in an annotation or in the Kitfile. In kits of early 2024, whose Kitfile does not have the
// digests of layers, paths are relative to the directory that the Kitfile names: an archive
// of one file is placed there, one of a directory stays where its own paths say.
//
// The Kitfile is a file of the model with that name, without the digests and diffIDs that packing
// adds to it: what "kit pack" takes. JSON is YAML. The config is kept byte for byte as a
// document of the origin.
//
// # What is refused
//
// A kit whose model is in another ModelKit, and one whose raw layers are compressed: both with an
// error that says so. A layer of another format. Datasets that the Kitfile says are elsewhere
// are not fetched.
package kitops

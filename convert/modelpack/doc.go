// Package modelpack parses ModelPack and the two generations of CNAI before it.
//
// The three are one format in three spellings: package mediatype reads them as one, so that
// what is left here is what differs.
//
//   - ModelPack and later CNAI: the media type of a layer says its kind and its packing. A
//     raw layer is a file at the path its annotation gives. Annotations are optional: a weight
//     without a path is model.gguf, or model-00001-of-00002.gguf … in the order of the manifest,
//     with the extension of the format that the media type or the config says, else .bin. Any
//     other raw layer needs a path. The config is JSON, in the spellings of all releases.
//   - Early CNAI: layers are ordinary image layers with an artifactType on the descriptor; the
//     kind is an annotation; the metadata is in annotations of the manifest. The config is an
//     image config with or without diffIDs, or empty. For a month the manifest had the type
//     of the artifact as its own, and layers a type of CNAI without a kind.
//
// Files are at the root of the model, under the paths that annotations or archives give. The
// one exception: an archive with one file whose name is the base name of the annotation is
// placed at the annotation, because writers before March 2025 dropped the directory.
//
// The layers of early CNAI are those of an image: later ones win, and whiteouts count
// (convert.Builder.Stack). In the later formats they are not: a name that starts with .wh. is a name.
package modelpack

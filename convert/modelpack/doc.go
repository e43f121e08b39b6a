// Package modelpack parses ModelPack and the two generations of CNAI before it.
//
// The three are one format with three sets of names: package mediatype reads them as one, so this
// package has only the differences.
//
//   - ModelPack and later CNAI: the media type of a layer determines its kind and its packing. A
//     raw layer is a file at the path of its annotation. Annotations are optional: a weight
//     without a path is model.gguf, or model-00001-of-00002.gguf … in the order of the manifest,
//     with the extension of the format in the media type or the config, otherwise .bin. Any
//     other raw layer needs a path. The config is JSON, with the names of all releases.
//   - Early CNAI: layers are ordinary image layers with an artifactType on the descriptor; the
//     kind is an annotation; the metadata is in annotations of the manifest. The config is an
//     image config with or without diffIDs, or empty. For a month the manifest had the type
//     of the artifact as its own, and layers a type of CNAI without a kind.
//
// Files are at the root of the model, under the paths in annotations or archives. The one
// exception: an archive with one file whose name is the base name of the annotation is placed at
// the annotation, because writers before March 2025 dropped the directory.
//
// The layers of early CNAI are those of an image: later ones override earlier ones, and whiteouts
// are applied (convert.Builder.Stack). In the later formats they are independent: a name that
// starts with .wh. is an ordinary name.
package modelpack

// Package titled parses artifacts that are no model in a format of their own, but files: each layer has a
// title, as "oras push" writes it.
//
// A layer is a file at the path that its title is, whatever its media type; or, with the annotation
// io.deis.oras.content.unpack, the tar and gzip of a directory, whose members have their paths in it.
//
// Nothing says that such an artifact is to be mounted, so convert.Detect does not have
// it: it is for who means it. An image can never be one (convert.IsTitled).
package titled

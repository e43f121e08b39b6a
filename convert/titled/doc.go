// Package titled parses artifacts that have no model format, but files: each layer has a title, as
// written by "oras push".
//
// A layer is a file whose path is its title, whatever its media type; or, with the annotation
// io.deis.oras.content.unpack, the gzip-compressed tar of a directory, whose members have their
// paths in it.
//
// Nothing marks such an artifact for mounting, so its claim is format.Wanted: it is used on request
// only. An image is never such an artifact.
package titled

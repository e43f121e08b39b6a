// Package mirror copies what ballast writes with the libraries of others, and reads it again; and checks it with the
// schema of ModelPack.
//
// A registry, the reference implementation, has what "ballast convert" writes in each form, and an index that a
// facade converted. Each is copied to another repository by the libraries of crane, oras and skopeo, and read by a
// facade of a node that knows nothing of it: manifest, files and config are the same.
//
// The library of skopeo needs a C library for signatures that nobody looks at here; with -tags
// containers_image_openpgp it does without, and only so it takes part. `make test-unit` says that.
package mirror

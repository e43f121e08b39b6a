// Package mirror copies the output of ballast with other libraries, and reads it again; and checks it
// with the schema of ModelPack.
//
// A registry, the reference implementation, has the output of "ballast convert" in each form, and an
// index that a facade converted. The libraries of crane, oras and skopeo copy each to another
// repository, where the facade of a new node reads it: manifest, files and config are the same.
//
// The library of skopeo needs a C library for signatures, which are not tested here; with -tags
// containers_image_openpgp it is not needed, and skopeo takes part only with this tag, which `make
// test-unit` uses.
package mirror

// Package registry is the facade: a registry on loopback that containerd asks instead of the
// upstream registry, and that answers the tag of a model with an ordinary image.
//
//	GET  /v2/                                     200
//	GET  /v2/<repository>/manifests/<tag>         resolved upstream, converted if it is a model
//	GET  /v2/<repository>/manifests/<digest>      ours, or upstream's if it is no model
//	GET  /v2/<repository>/blobs/<digest>          ours, or upstream's as it is
//
// HEAD answers the same without a body. The upstream host is in the query parameter ns, as
// containerd sends it to a mirror, or is the first component of the repository.
//
// # Manifests
//
// A tag is one GET upstream. What is no model passes byte for byte. A model is parsed, built
// into an image, and kept in the store by the digest of its origin, so that the next request
// for it converts nothing; one conversion of an origin runs at a time, and goes on when the
// one who asked goes away. An index of models becomes an index of converted images. Entries of
// an index are looked at by what their descriptors say; only those with neither a type of
// artifact nor a platform are read. An index in an index is refused.
//
// By digest there are the manifests made here, and those upstream that are not models. The
// digest of a model upstream is refused with the digest to pin instead: containerd would
// compare the digest of our answer, and without us it would mount an empty directory.
//
// # Access
//
// The facade has no access rules of its own: who can read an origin can read what was made of
// it. Upstream is asked without credentials of the caller first. If it refuses, so does the
// facade, with a challenge for Basic, which makes containerd send the pull secret; that is then
// used for that host and repository only, and kept in memory, never on disk, to fetch blobs
// later. An image whose origin needed it is private: its manifest and blobs by digest are
// given to those whose credentials can read the origin, which is remembered for a minute.
//
// # Errors
//
// Errors have the format of the distribution specification. containerd asks with HEAD first
// and shows the text of an answer only for status 403, so whatever a person must read (a format
// that is not supported, a digest to pin) is a 403.
//
// A request that a client of ours has sent is refused with 508.
package registry

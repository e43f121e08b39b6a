// Package cosign verifies and makes signatures of cosign over the digest of a manifest.
//
// There are two forms. A bundle (cosign 3, and 2 if asked for) states that the digest of its subject was
// signed; the predicate is empty. Before that, a payload of its own, "simple signing", names the digest, and
// the signature is an annotation of the layer that has the payload.
//
// What counts is the digest. The name of the image in a payload is not compared, as cosign does not: a
// signature goes along when an image is copied. Entries of a transparency log are not looked at, so these
// are the signatures that "cosign verify --key … --insecure-ignore-tlog" accepts.
//
// https://github.com/sigstore/cosign/blob/v3.0.2/specs/SIGNATURE_SPEC.md
// https://github.com/sigstore/cosign/blob/v3.0.2/specs/BUNDLE_SPEC.md
package cosign

// Package cosign verifies and makes cosign signatures of the digest of a manifest.
//
// There are two forms. A bundle (cosign 3, and optionally 2) is a statement whose subject has the digest;
// the predicate is empty. In the older form, "simple signing", a payload names the digest, and the signature
// is an annotation of the layer with the payload.
//
// Only the digest counts. The name of the image in a payload is not compared, as in cosign, since
// signatures are copied with images. Transparency log entries are not checked for signatures with keys and
// certificates of a CA; the result corresponds to "cosign verify --key … --insecure-ignore-tlog". Keyless
// signatures are bundles, verified with log and timestamps: see package keyless.
//
// https://github.com/sigstore/cosign/blob/v3.0.2/specs/SIGNATURE_SPEC.md
// https://github.com/sigstore/cosign/blob/v3.0.2/specs/BUNDLE_SPEC.md
package cosign

// Package dsse reads, verifies and writes signed statements: a DSSE envelope in a sigstore bundle, which
// is what OpenSSF Model Signing and cosign write.
//
//	bundle v0.3 ─▶ Parse ─▶ Bundle ─▶ Trust.Verify ─▶ Statement (in-toto), and who signed
//
// Parse is given what strangers wrote and believes none of it; it is bounded in size, certificates and
// signatures. A Statement comes out of Trust.Verify alone, after a signature over its bytes has matched.
//
// # Who is trusted
//
// A Trust has public keys, or roots of certificates, or both; what the bundle says of its own key is
// never used. A certificate has to be one for code signing, and, if the Trust names a subject, one of its
// names has to be that. It is looked at as of the moment when it became valid: a bundle does not say when
// it was signed, and a model outlives the certificate of its signer. So a certificate that leaked stays
// trusted until its root is taken out.
//
// A key of a curve signs with the hash of the curve; SHA-256 is tried too, which is what cosign
// uses with any key. RSA is PKCS #1 v1.5 or PSS with SHA-256.
//
// Keyless signatures, whose certificates live for ten minutes, need a transparency log and its trust
// root, which comes over the network (TUF), and are not verified.
//
// https://github.com/secure-systems-lab/dsse/blob/v1.0.2/protocol.md
// https://github.com/sigstore/protobuf-specs/blob/v0.5.0/protos/sigstore_bundle.proto
package dsse

// Package dsse reads, verifies and writes signed statements: a DSSE envelope in a sigstore bundle, as OpenSSF
// Model Signing and cosign write it.
//
//	bundle v0.3 ─▶ Parse ─▶ Bundle ─▶ Trust.Verify ─▶ Statement (in-toto) and signer
//
// Parse accepts untrusted input, limited in size, certificates and signatures. Only Trust.Verify returns a
// Statement, after it has verified a signature of its bytes.
//
// # Trust
//
// A Trust has public keys, root certificates, or both; a key in the bundle is never used. The signer's certificate
// must allow code signing and, if the Trust has a subject, contain that name as a name of that type. It is verified
// at the start of its validity: a bundle has no signing time, and a model outlives the certificate of its signer. A
// leaked certificate therefore stays trusted until its root is removed.
//
// An elliptic curve key signs with the hash of its curve; SHA-256 is also accepted, which cosign uses with
// every key. RSA is PKCS #1 v1.5 or PSS with SHA-256.
//
// # Keyless signatures
//
// Their certificates are valid for ten minutes, and a log and timestamps show when they were used. Another program
// verifies that: see package keyless. What it has found, a Proof, is kept in the Bundle. An Identity accepts the proof
// if it is by the trusted root of the Identity, about the bytes of the payload that becomes the Statement, and names
// issuer and subject exactly.
//
// https://github.com/secure-systems-lab/dsse/blob/v1.0.2/protocol.md
// https://github.com/sigstore/protobuf-specs/blob/v0.5.0/protos/sigstore_bundle.proto
package dsse

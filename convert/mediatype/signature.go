package mediatype

import "strings"

// Media types of signatures.
const (
	// Bundle is a sigstore bundle: a blob, and the artifactType of a manifest with one.
	// https://github.com/sigstore/cosign/blob/v3.0.2/specs/BUNDLE_SPEC.md
	Bundle = "application/vnd.dev.sigstore.bundle.v0.3+json"

	// InToto is the payload of a signed statement.
	InToto = "application/vnd.in-toto+json"

	// SigningConfig is a file that names services which make keyless signatures, TrustedRoot one with their keys.
	// https://github.com/sigstore/protobuf-specs/blob/v0.5.1/protos/sigstore_trustroot.proto
	SigningConfig = "application/vnd.dev.sigstore.signingconfig.v0.2+json"
	TrustedRoot   = "application/vnd.dev.sigstore.trustedroot+json;version=0.1"

	// CosignPayload is the signed blob of a cosign signature without a bundle.
	// https://github.com/sigstore/cosign/blob/v3.0.2/specs/SIGNATURE_SPEC.md
	CosignPayload = "application/vnd.dev.cosign.simplesigning.v1+json"

	// CosignSignature is the artifactType of a manifest with such blobs.
	CosignSignature = "application/vnd.dev.cosign.artifact.sig.v1+json"
)

// Annotations of a CosignPayload layer.
const (
	CosignSignatureKey   = "dev.cosignproject.cosign/signature"
	CosignCertificateKey = "dev.sigstore.cosign/certificate"
	CosignChainKey       = "dev.sigstore.cosign/chain"
)

// Annotations of a manifest with a Bundle, as cosign writes them.
const (
	BundleContentKey   = "dev.sigstore.bundle.content"
	BundlePredicateKey = "dev.sigstore.bundle.predicateType"
)

// IsBundle reports whether s is a sigstore bundle with one statement and a key or chain: v0.3 in
// both spellings, or an earlier version.
func IsBundle(s string) bool {
	switch strings.ToLower(strings.TrimSpace(s)) {
	case Bundle, "application/vnd.dev.sigstore.bundle+json;version=0.3",
		"application/vnd.dev.sigstore.bundle+json;version=0.2", "application/vnd.dev.sigstore.bundle+json;version=0.1":
		return true
	}
	return false
}

// IsTrustedRoot reports whether s is a file of sigstore with the certificates and keys to verify keyless signatures.
// https://github.com/sigstore/protobuf-specs/blob/v0.5.1/protos/sigstore_trustroot.proto
func IsTrustedRoot(s string) bool {
	return strings.HasPrefix(s, "application/vnd.dev.sigstore.trustedroot")
}

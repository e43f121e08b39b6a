package cosign

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/signature/dsse"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// PredicateType is the predicate type of the statement in a bundle.
const PredicateType = "https://sigstore.dev/cosign/sign/v1"

// MaxPayload limits a payload of simple signing, in bytes.
const MaxPayload = 64 << 10

// maxAnnotation limits a decoded annotation, in bytes: certificate chains have a few thousand.
const maxAnnotation = 64 << 10

// Verify returns the signer of a manifest in a bundle. It returns errdefs.ErrPermissionDenied if no
// trusted signer signed the bundle, and errdefs.ErrFailedPrecondition if it is about another
// manifest.
func Verify(b *dsse.Bundle, t *dsse.Trust, manifest digest.Digest) (string, error) {
	s, signer, err := t.Verify(b)
	if err != nil {
		return "", err
	}
	if s.PredicateType != PredicateType {
		return "", fmt.Errorf("a statement %.100q is not the signature of an image: %w", s.PredicateType, errdefs.ErrFailedPrecondition)
	}
	for _, sub := range s.Subject {
		if verify.Compare(manifest, digest.Digest("sha256:"+sub.Digest["sha256"]), 0, 0) == nil {
			return signer, nil
		}
	}
	return "", another(manifest)
}

func another(manifest digest.Digest) error {
	return fmt.Errorf("the signature is not for %s: %w", manifest, errdefs.ErrFailedPrecondition)
}

// Statement returns the statement to sign for a manifest.
func Statement(manifest digest.Digest) dsse.Statement {
	return dsse.Statement{
		Type:          dsse.StatementType,
		Subject:       []dsse.Subject{{Digest: map[string]string{"sha256": manifest.Encoded()}}},
		PredicateType: PredicateType, Predicate: json.RawMessage("{}"),
	}
}

// payload is the signed content of a signature without a bundle.
// https://github.com/containers/image/blob/v5.36.2/docs/containers-signature.5.md
type payload struct {
	Critical struct {
		Image struct {
			Digest string `json:"docker-manifest-digest"`
		} `json:"image"`
		Type string `json:"type"`
	} `json:"critical"`
}

// Types of a payload: of cosign, and of tools for simple signing.
const (
	typeCosign = "cosign container image signature"
	typeAtomic = "atomic container signature"
)

// VerifyPayload returns the signer of a manifest in a payload, which is the blob of a layer. Errors
// are those of Verify, and errdefs.ErrInvalidArgument for a layer without a signature.
func VerifyPayload(layer ocispec.Descriptor, blob []byte, t *dsse.Trust, manifest digest.Digest) (string, error) {
	sig, err := signatureOf(layer)
	if err != nil {
		return "", err
	}
	signer, err := t.VerifyMessage(blob, sig, certificates(layer))
	if err != nil {
		return "", err
	}
	var p payload
	if err := json.Unmarshal(blob, &p); err != nil {
		return "", fmt.Errorf("payload: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if t := p.Critical.Type; t != typeCosign && t != typeAtomic {
		return "", fmt.Errorf("payload: type %.100q is not the signature of an image: %w", t, errdefs.ErrFailedPrecondition)
	}
	if verify.Compare(manifest, digest.Digest(p.Critical.Image.Digest), 0, 0) != nil {
		return "", another(manifest)
	}
	return signer, nil
}

func signatureOf(layer ocispec.Descriptor) ([]byte, error) {
	text := layer.Annotations[mediatype.CosignSignatureKey]
	if text == "" || len(text) > maxAnnotation {
		return nil, fmt.Errorf("layer %s has no signature: %w", layer.Digest, errdefs.ErrInvalidArgument)
	}
	sig, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("signature of layer %s: %w: %w", layer.Digest, err, errdefs.ErrInvalidArgument)
	}
	return sig, nil
}

// certificates returns the certificates of a layer in DER, the signer's first.
func certificates(layer ocispec.Descriptor) (all [][]byte) {
	for _, key := range []string{mediatype.CosignCertificateKey, mediatype.CosignChainKey} {
		text := layer.Annotations[key]
		if len(text) > maxAnnotation {
			continue
		}
		for block, rest := pem.Decode([]byte(text)); block != nil; block, rest = pem.Decode(rest) {
			all = append(all, block.Bytes)
		}
	}
	return all
}

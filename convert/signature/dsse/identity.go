package dsse

import (
	"fmt"

	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// An Identity is the signer of keyless signatures. Both names must be as in the certificate, without patterns.
type Identity struct {
	Issuer  string        // who vouches for the subject: an issuer of OpenID Connect
	Subject string        // an email address, or a URI such as that of a workflow
	Root    digest.Digest // of the file with the trusted root
}

// A Proof is the result of the verification of a bundle by a trusted root.
type Proof struct {
	Signed          digest.Digest // of the bytes that the signature covers: payload type and payload
	Issuer, Subject string
	Err             error // or why there is no proof
}

// Unproven reports whether a bundle may have a keyless signature that was not verified by a trusted root yet.
func (b *Bundle) Unproven(root digest.Digest) bool {
	_, ok := b.proofs[root]
	return !ok && len(b.certificates) > 0
}

// Prove keeps the result of the verification by a trusted root.
func (b *Bundle) Prove(root digest.Digest, p Proof) {
	if b.proofs == nil {
		b.proofs = map[digest.Digest]Proof{}
	}
	b.proofs[root] = p
}

// signed returns the signer of a bundle if it is the identity, and the proof is about the bytes of the bundle.
func (i *Identity) signed(b *Bundle) (string, error) {
	p, ok := b.proofs[i.Root]
	here := digest.FromBytes(pae(b.payload))
	switch {
	case !ok:
		return "", fmt.Errorf("not a keyless signature: %w", errdefs.ErrPermissionDenied)
	case p.Err != nil:
		return "", p.Err
	case verify.Compare(p.Signed, here, 0, 0) != nil:
		return "", fmt.Errorf("the keyless signature is for other bytes than the bundle has here: %w", errdefs.ErrPermissionDenied)
	case p.Issuer != i.Issuer:
		return "", fmt.Errorf("signed by %.200q, whose issuer %.200q is not %q: %w", p.Subject, p.Issuer, i.Issuer, errdefs.ErrPermissionDenied)
	case p.Subject != i.Subject:
		return "", fmt.Errorf("signed by %.200q, not by %q: %w", p.Subject, i.Subject, errdefs.ErrPermissionDenied)
	}
	return fmt.Sprintf("%q of %s", p.Subject, p.Issuer), nil
}

package dsse

import (
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"

	"github.com/ballast-dev/ballast/convert/mediatype"
)

// Sign returns a bundle with a statement signed by a key. The result is deterministic.
func Sign(key crypto.Signer, s Statement) ([]byte, error) {
	payload, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("statement: %w", err)
	}
	sig, err := signMessage(key, pae(payload))
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	return json.Marshal(bundleJSON{
		MediaType:            mediatype.Bundle,
		VerificationMaterial: material{PublicKey: &publicKey{Hint: hint(key.Public())}},
		Envelope: envelopeJSON{
			Payload: payload, PayloadType: mediatype.InToto, Signatures: []signatureJSON{{Sig: sig}},
		},
	})
}

// hint identifies a key as model-signing does, by the sha256 of its PEM form; cosign accepts any
// text.
func hint(k crypto.PublicKey) string {
	der, err := x509.MarshalPKIXPublicKey(k)
	if err != nil {
		panic("dsse: internal error: " + err.Error()) // ParsePrivateKey returns no other keys
	}
	sum := sha256.Sum256(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	return hex.EncodeToString(sum[:])
}

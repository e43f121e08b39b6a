package dsse

import (
	"crypto/x509"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// MaxSize limits a bundle, in bytes. The statement of a model has about 150 bytes for each file, a
// third more in base64, so it is enough for 40,000 files.
const MaxSize = 8 << 20 // 8 MiB

// maxCertificates limits the certificates in a bundle.
const maxCertificates = 8

// A Bundle is a signed statement that is not yet verified.
type Bundle struct {
	payload      []byte
	signature    []byte
	certificates [][]byte                // DER, the signer's first
	hint         string                  // at the key
	proofs       map[digest.Digest]Proof // by trusted root
	predicate    string                  // predicate type in the payload
}

// bundleJSON is the JSON form of a bundle, limited to the members used here. It accepts several
// generations: a key of model-signing 1.0 has rawBytes, which are not used.
type bundleJSON struct {
	MediaType            string       `json:"mediaType"`
	VerificationMaterial material     `json:"verificationMaterial"`
	Envelope             envelopeJSON `json:"dsseEnvelope"`
}

type material struct {
	PublicKey   *publicKey   `json:"publicKey,omitempty"`
	Certificate *certificate `json:"certificate,omitempty"`
	Chain       *chain       `json:"x509CertificateChain,omitempty"`
}

type publicKey struct {
	Hint string `json:"hint,omitempty"`
}

type certificate struct {
	RawBytes []byte `json:"rawBytes"`
}

type chain struct {
	Certificates few[certificate] `json:"certificates"`
}

type envelopeJSON struct {
	Payload     []byte             `json:"payload"`
	PayloadType string             `json:"payloadType"`
	Signatures  few[signatureJSON] `json:"signatures"`
}

type signatureJSON struct {
	Sig []byte `json:"sig"`
}

// A few is a list of which one more than maxCertificates elements are read: a bundle can have millions, in a multiple
// of its size.
type few[T any] []T

// UnmarshalJSON implements json.Unmarshaler.
func (f *few[T]) UnmarshalJSON(p []byte) error {
	var some [maxCertificates + 1]json.RawMessage // the rest is skipped
	if err := json.Unmarshal(p, &some); err != nil {
		return err
	}
	for _, one := range some {
		if one == nil {
			break
		}
		var v T
		if err := json.Unmarshal(one, &v); err != nil {
			return err
		}
		*f = append(*f, v)
	}
	return nil
}

// Parse parses a bundle. It returns errdefs.ErrInvalidArgument for invalid input, and
// errdefs.ErrNotImplemented for a bundle with anything but one signed statement.
func Parse(p []byte) (*Bundle, error) {
	if len(p) > MaxSize {
		return nil, fmt.Errorf("bundle has %d bytes, more than %d: %w", len(p), MaxSize, errdefs.ErrInvalidArgument)
	}
	var b bundleJSON
	if err := json.Unmarshal(p, &b); err != nil {
		return nil, fmt.Errorf("bundle: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if !mediatype.IsBundle(b.MediaType) {
		return nil, fmt.Errorf("bundle: media type %.100q is not known: %w", b.MediaType, errdefs.ErrNotImplemented)
	}
	switch e := b.Envelope; {
	case e.PayloadType != mediatype.InToto:
		return nil, fmt.Errorf("bundle: payload type %.100q is not that of a statement: %w", e.PayloadType, errdefs.ErrNotImplemented)
	case len(e.Signatures) != 1:
		return nil, fmt.Errorf("bundle: %d signatures where there should be one: %w", len(e.Signatures), errdefs.ErrInvalidArgument)
	case len(e.Payload) == 0 || len(e.Signatures[0].Sig) == 0:
		return nil, fmt.Errorf("bundle: no payload or no signature: %w", errdefs.ErrInvalidArgument)
	}
	out := &Bundle{payload: b.Envelope.Payload, signature: b.Envelope.Signatures[0].Sig}
	if k := b.VerificationMaterial.PublicKey; k != nil {
		out.hint = k.Hint
	}
	if c := b.VerificationMaterial.Certificate; c != nil {
		out.certificates = append(out.certificates, c.RawBytes)
	}
	if c := b.VerificationMaterial.Chain; c != nil {
		for _, x := range c.Certificates {
			out.certificates = append(out.certificates, x.RawBytes)
		}
	}
	if n := len(out.certificates); n > maxCertificates {
		return nil, fmt.Errorf("bundle: %d certificates, more than %d: %w", n, maxCertificates, errdefs.ErrInvalidArgument)
	}
	var s struct {
		PredicateType string `json:"predicateType"`
	}
	if err := json.Unmarshal(out.payload, &s); err != nil {
		return nil, fmt.Errorf("statement: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	out.predicate = s.PredicateType
	return out, nil
}

// Claim describes who claims to have signed the bundle. Nothing of it is verified.
func (b *Bundle) Claim() string {
	if len(b.certificates) > 0 {
		if c, err := x509.ParseCertificate(b.certificates[0]); err == nil {
			return fmt.Sprintf("certificate of %.200q", nameOf(c))
		}
	}
	if b.hint != "" {
		return fmt.Sprintf("key %.200q", b.hint)
	}
	return "a key without a name"
}

// PredicateType returns the predicate type of the statement, unverified. It serves to select
// bundles.
func (b *Bundle) PredicateType() string { return b.predicate }

// A Statement is an in-toto statement about subjects.
// https://github.com/in-toto/attestation/blob/v1.1.0/spec/v1/statement.md
type Statement struct {
	Type          string          `json:"_type"`
	Subject       []Subject       `json:"subject"`
	PredicateType string          `json:"predicateType"`
	Predicate     json.RawMessage `json:"predicate"`
}

// A Subject is an object that a statement is about.
type Subject struct {
	Name   string            `json:"name,omitempty"`
	Digest map[string]string `json:"digest"` // by algorithm, in hexadecimal
}

// StatementType is the type of written statements.
const StatementType = "https://in-toto.io/Statement/v1"

// parseStatement parses a statement.
func parseStatement(p []byte) (*Statement, error) {
	var s Statement
	if err := json.Unmarshal(p, &s); err != nil {
		return nil, fmt.Errorf("statement: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if !strings.HasPrefix(s.Type, "https://in-toto.io/Statement/v") {
		return nil, fmt.Errorf("statement: type %.100q is not known: %w", s.Type, errdefs.ErrNotImplemented)
	}
	return &s, nil
}

// pae returns the signed bytes of a statement.
// https://github.com/secure-systems-lab/dsse/blob/v1.0.2/protocol.md#signature-definition
func pae(payload []byte) []byte {
	head := fmt.Sprintf("DSSEv1 %d %s %d ", len(mediatype.InToto), mediatype.InToto, len(payload))
	return append([]byte(head), payload...)
}

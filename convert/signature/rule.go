package signature

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ballast-dev/ballast/convert/signature/dsse"
	"github.com/ballast-dev/ballast/convert/signature/notation"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A Mode says what comes of a model that is not as a rule wants it.
type Mode string

// The modes.
const (
	Off     Mode = "off"     // nothing is looked at
	Warn    Mode = "warn"    // the log says so
	Enforce Mode = "enforce" // the model is refused
)

// The types of signers.
const (
	TypeOMS      = "oms"      // OpenSSF Model Signing
	TypeCosign   = "cosign"   // cosign, with keys or certificates
	TypeNotation = "notation" // Notary Project
)

// maxFile is the largest file of keys or certificates, in bytes.
const maxFile = 1 << 20

// checkVersion changes when a Check accepts less than before, so that it is asked again.
const checkVersion = 1

// RuleOptions say what a Rule wants.
type RuleOptions struct {
	Name    string                 // for messages
	Matches func(name string) bool // names as of remote.Ref.Name
	Mode    Mode

	// Any are those of whom one has to have signed; none: nobody has to.
	Any []SignerOptions

	// DenyCode refuses models with files that are programs, or that run some when they are loaded.
	DenyCode bool

	// Licenses are those that a model may have, as its config names them; none: any.
	Licenses []string
}

// SignerOptions say who a signer is: keys or roots for TypeOMS and TypeCosign, a policy for TypeNotation.
type SignerOptions struct {
	Type    string
	Key     string // file with public keys, PEM
	Roots   string // file with certificates, PEM, that those of signers are below
	Subject string // with Roots: a name in the certificate of the signer
	Policy  string // trustpolicy.json of notation, with the directory truststore beside it
}

// A Rule is what models of some names have to be.
type Rule struct {
	o       RuleOptions
	signers []signer
	id      digest.Digest // of all that a verdict depends on
}

type signer struct {
	kind     string
	about    string // for messages
	trust    *dsse.Trust
	notation *notation.Verifier
}

// NewRule reads the files of a rule. Errors name the file, and are errdefs.ErrInvalidArgument for what is
// in it.
func NewRule(o RuleOptions) (*Rule, error) {
	r := &Rule{o: o}
	depends := []any{checkVersion, o.DenyCode, o.Licenses}
	for i, so := range o.Any {
		s, material, err := newSigner(so)
		if err != nil {
			return nil, fmt.Errorf("rule %q: signer %d (%s): %w", o.Name, i+1, so.Type, err)
		}
		r.signers = append(r.signers, s)
		depends = append(depends, so.Type, so.Subject, material)
	}
	p, err := json.Marshal(depends)
	if err != nil {
		return nil, fmt.Errorf("rule %q: %w", o.Name, err)
	}
	r.id = digest.FromBytes(p)
	return r, nil
}

// newSigner returns a signer, and what was read for it.
func newSigner(o SignerOptions) (s signer, material []string, err error) {
	s = signer{kind: o.Type, about: o.Type}
	switch o.Type {
	case TypeOMS, TypeCosign:
	case TypeNotation:
		s.about += " policy " + filepath.Base(o.Policy)
		s.notation, material, err = notation.Load(o.Policy)
		return s, material, err
	default:
		return s, nil, fmt.Errorf("type %q is none of %s, %s, %s: %w", o.Type, TypeOMS, TypeCosign, TypeNotation, errdefs.ErrInvalidArgument)
	}
	s.trust = &dsse.Trust{Subject: o.Subject}
	if o.Key != "" {
		p, err := readFile(o.Key)
		if err == nil {
			s.trust.Keys, err = dsse.ParseKeys(p)
		}
		if err != nil {
			return s, nil, fmt.Errorf("key %s: %w", o.Key, err)
		}
		s.about += " key " + filepath.Base(o.Key)
		material = append(material, string(p))
	}
	if o.Roots != "" {
		p, err := readFile(o.Roots)
		if err == nil {
			s.trust.Roots, err = dsse.ParseCertificates(p)
		}
		if err != nil {
			return s, nil, fmt.Errorf("roots %s: %w", o.Roots, err)
		}
		s.about += " roots " + filepath.Base(o.Roots)
		material = append(material, string(p))
	}
	if len(material) == 0 {
		return s, nil, fmt.Errorf("neither a key nor roots: %w", errdefs.ErrInvalidArgument)
	}
	return s, material, nil
}

func readFile(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil, fmt.Errorf("is no file, or has more than %d bytes: %w", maxFile, errdefs.ErrInvalidArgument)
	}
	return os.ReadFile(name)
}

package signature

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/signature/dsse"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A Mode determines what happens to a model that violates a rule.
type Mode string

// The modes.
const (
	Off     Mode = "off"     // no check
	Warn    Mode = "warn"    // the violation is logged
	Enforce Mode = "enforce" // the model is refused
)

// Types of signers.
const (
	TypeOMS    = "oms"    // OpenSSF Model Signing
	TypeCosign = "cosign" // cosign, with keys or certificates
)

// maxFile limits a file of keys or certificates, in bytes.
const maxFile = 1 << 20

// checkVersion changes when a Check becomes stricter, so that stored verdicts are not used.
const checkVersion = 3

// RuleOptions describe a Rule.
type RuleOptions struct {
	Name    string                 // for messages
	Matches func(name string) bool // matches names as in remote.Ref.Name
	Mode    Mode

	// MayMatch reports whether the rule may be for a name of which a part is unknown, such as its port. It then applies
	// beside the rule that matches, and never in its place. Nil matches nothing.
	MayMatch func(name string) bool

	// Any lists the accepted signers, one of which must have signed; empty means that no signature
	// is required.
	Any []SignerOptions

	// DenyCode refuses models with files that can be executed, or are not known to be data or text.
	DenyCode bool

	// Licenses are the allowed licences, as named in the config of a model; empty allows all.
	Licenses []string
}

// SignerOptions identify a signer, by keys, roots, or an identity of a trusted root.
type SignerOptions struct {
	Type    string
	Key     string // file with public keys, PEM
	Roots   string // file with root certificates of signers, PEM
	Subject string // with Roots: a name in the signer's certificate, as in dsse.Trust; with TrustedRoot: as in dsse.Identity

	TrustedRoot string // file with the trusted root of keyless signatures, JSON
	Issuer      string // with TrustedRoot, as in dsse.Identity
}

// A Rule has the requirements for models of some names.
type Rule struct {
	o       RuleOptions
	signers []signer
	id      digest.Digest // of everything that a verdict depends on, but for policy
}

type signer struct {
	kind  string
	about string // for messages
	trust *dsse.Trust
	root  []byte // the trusted root of trust.Identity
}

// NewRule reads the files of a rule. Errors name the file, and are errdefs.ErrInvalidArgument for
// invalid content.
func NewRule(o RuleOptions) (*Rule, error) {
	r := &Rule{o: o}
	depends := []any{checkVersion, o.DenyCode, o.Licenses}
	var ofFiles []signer
	for i, so := range o.Any {
		s, material, err := newSigner(so)
		if err != nil {
			return nil, fmt.Errorf("rule %q: signer %d (%s): %w", o.Name, i+1, so.Type, err)
		}
		if s.kind == TypeOMS { // asked last, because a signature of the manifest covers more
			ofFiles = append(ofFiles, s)
		} else {
			r.signers = append(r.signers, s)
		}
		depends = append(depends, so.Type, so.Subject, material)
	}
	r.signers = append(r.signers, ofFiles...)
	p, err := json.Marshal(depends)
	if err != nil {
		return nil, fmt.Errorf("rule %q: %w", o.Name, err)
	}
	r.id = digest.FromBytes(p)
	return r, nil
}

// policy identifies what a verdict about the table of a subject depends on. Licences are in the config, and images with
// one table can have several; one that was converted ahead has a config that nobody made here.
func (r *Rule) policy(s Subject) digest.Digest {
	if len(r.o.Licenses) == 0 && !s.Image.Ahead {
		return r.id
	}
	return digest.FromString(string(r.id) + " " + string(s.Image.Config))
}

// newSigner returns a signer and the content of its files.
func newSigner(o SignerOptions) (s signer, material []string, err error) {
	s = signer{kind: o.Type, about: o.Type}
	if o.Type != TypeOMS && o.Type != TypeCosign {
		return s, nil, fmt.Errorf("type %q is not one of %s, %s: %w", o.Type, TypeOMS, TypeCosign, errdefs.ErrInvalidArgument)
	}
	if o.TrustedRoot != "" {
		return newKeyless(o)
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

// newKeyless returns a signer of keyless signatures, and what it depends on.
func newKeyless(o SignerOptions) (s signer, material []string, err error) {
	if o.Key != "" || o.Roots != "" || o.Issuer == "" || o.Subject == "" {
		return s, nil, fmt.Errorf("a trusted root needs an issuer and a subject, and neither key nor roots: %w", errdefs.ErrInvalidArgument)
	}
	root, err := readFile(o.TrustedRoot)
	if err == nil {
		err = checkRoot(root)
	}
	if err != nil {
		return s, nil, fmt.Errorf("trusted root %s: %w", o.TrustedRoot, err)
	}
	trust := &dsse.Trust{Identity: &dsse.Identity{Issuer: o.Issuer, Subject: o.Subject, Root: digest.FromBytes(root)}}
	return signer{o.Type, o.Type + " keyless", trust, root}, []string{"keyless", o.Issuer, string(root)}, nil
}

// checkRoot checks that a file is a trusted root. Its content is for the program that verifies by it.
func checkRoot(p []byte) error {
	var root struct {
		MediaType string `json:"mediaType"`
	}
	if err := json.Unmarshal(p, &root); err != nil {
		return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	if !mediatype.IsTrustedRoot(root.MediaType) {
		return fmt.Errorf("media type %.100q is not that of a trusted root: %w", root.MediaType, errdefs.ErrInvalidArgument)
	}
	return nil
}

func readFile(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil, fmt.Errorf("not a regular file, or more than %d bytes: %w", maxFile, errdefs.ErrInvalidArgument)
	}
	return os.ReadFile(name)
}

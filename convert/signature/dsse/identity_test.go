package dsse

import (
	"crypto"
	"errors"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// TestIdentity accepts a proof of exactly this issuer and subject, by this trusted root, about the bytes that are
// judged.
func TestIdentity(t *testing.T) {
	root, failed := digest.FromString("root"), errors.New("no proof")
	id := Identity{Issuer: "https://accounts.example", Subject: "release@team.example", Root: root}
	key := privateKeys(t)["P-256"]
	p, err := Sign(key, statement)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := Parse(p)
	if err != nil {
		t.Fatal(err)
	}
	good := Proof{Signed: digest.FromBytes(pae(parsed.payload)), Issuer: id.Issuer, Subject: id.Subject}
	with := func(change func(*Proof)) Proof {
		p := good
		change(&p)
		return p
	}
	for _, tt := range []struct {
		name  string
		root  digest.Digest
		proof Proof
		ok    bool
	}{
		{"the signer", root, good, true},
		{"another issuer", root, with(func(p *Proof) { p.Issuer = "https://other.example" }), false},
		{"a longer issuer", root, with(func(p *Proof) { p.Issuer += ".example" }), false},
		{"no issuer", root, with(func(p *Proof) { p.Issuer = "" }), false},
		{"another subject", root, with(func(p *Proof) { p.Subject = "mallory@team.example" }), false},
		{"a longer subject", root, with(func(p *Proof) { p.Subject = "a." + p.Subject }), false},
		{"another spelling", root, with(func(p *Proof) { p.Subject = "Release@team.example" }), false},
		{"no subject", root, with(func(p *Proof) { p.Subject = "" }), false},
		{"other bytes", root, with(func(p *Proof) { p.Signed = digest.FromString("other") }), false},
		{"no bytes", root, with(func(p *Proof) { p.Signed = "" }), false},
		{"the payload without its type", root, with(func(p *Proof) { p.Signed = digest.FromBytes(parsed.payload) }), false},
		{"another trusted root", digest.FromString("other"), good, false},
		{"no proof", root, with(func(p *Proof) { p.Err = failed }), false},
	} {
		b := *parsed
		b.Prove(tt.root, tt.proof)
		s, who, err := (&Trust{Identity: &id}).Verify(&b)
		if (err == nil) != tt.ok || tt.ok && (who != `"release@team.example" of https://accounts.example` || s.PredicateType != statement.PredicateType) {
			t.Errorf("%s: %+v by %s, %v, want accepted %v", tt.name, s, who, err, tt.ok)
		}
		if err != nil && !errdefs.IsPermissionDenied(err) && !errors.Is(err, failed) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if _, _, err := (&Trust{Identity: &id}).Verify(parsed); !errdefs.IsPermissionDenied(err) {
		t.Errorf("never verified: %v", err)
	}
	// An identity is the only trusted signer, and never of bytes without a bundle.
	message := []byte("x")
	sig, err := signMessage(key, message)
	if err != nil {
		t.Fatal(err)
	}
	trust := &Trust{Identity: &id, Keys: []crypto.PublicKey{key.Public()}}
	if _, err := trust.VerifyMessage(message, sig, nil); !errdefs.IsPermissionDenied(err) {
		t.Errorf("without a bundle: %v", err)
	}
	if _, err := trust.Signer(parsed); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a key beside an identity: %v", err)
	}
}

// TestUnproven asks once by each trusted root, and only for bundles with a certificate.
func TestUnproven(t *testing.T) {
	b := &Bundle{}
	if b.Unproven("a") {
		t.Error("a bundle without a certificate is verified")
	}
	b.certificates = [][]byte{{}}
	b.Prove("a", Proof{})
	if b.Unproven("a") || !b.Unproven("b") {
		t.Error("a bundle is verified twice, or not by each root")
	}
}

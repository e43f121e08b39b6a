package hashstate

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"encoding/json"
	"testing"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/signature/dsse"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// newKey returns a key that depends on seed, and the trust in it.
func newKey(seed byte) (crypto.Signer, *dsse.Trust) {
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
	return key, &dsse.Trust{Keys: []crypto.PublicKey{key.Public()}}
}

// newBlob returns a blob of four windows and its chain.
func newBlob(t testing.TB, fill byte) (filetable.Blob, verify.Chain) {
	p := bytes.Repeat([]byte{fill}, 2*verify.Window+1)
	b := filetable.Blob{Digest: digest.FromBytes(p), Size: int64(len(p))}
	c, err := verify.ReadChain(t.Context(), bytes.NewReader(p), b.Digest, b.Size, func(int64) {})
	if err != nil {
		t.Fatal(err)
	}
	return b, c
}

// A table that was written is read with its signer, and written once. Without a trusted key, or under the name of
// another blob, it is refused.
func TestTable(t *testing.T) {
	s := registrytest.New(t)
	c, err := remote.New(remote.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	repo, err := c.Repository(remote.Ref{Host: s.Host(), Repository: "team/tables"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	key, trust := newKey(1)
	_, others := newKey(2)
	b, chain := newBlob(t, 1)
	if _, _, err := Read(t.Context(), repo, trust, b); !errdefs.IsNotFound(err) {
		t.Errorf("no table: %v", err)
	}
	for _, want := range []bool{true, false} {
		if written, err := Write(t.Context(), repo, key, b, chain); err != nil || written != want {
			t.Fatalf("written %v, %v, want %v", written, err, want)
		}
	}
	if got, signer, err := Read(t.Context(), repo, trust, b); err != nil || !bytes.Equal(got, chain) || signer != dsse.KeyName(key.Public()) {
		t.Errorf("%d bytes of states by %q, %v", len(got), signer, err)
	}
	if _, _, err := Read(t.Context(), repo, others, b); !errdefs.IsPermissionDenied(err) {
		t.Errorf("another key: %v", err)
	}
	if _, _, err := Read(t.Context(), repo, &dsse.Trust{}, b); !errdefs.IsPermissionDenied(err) {
		t.Errorf("no key: %v", err)
	}
	another, _ := newBlob(t, 2)
	m, err := repo.Manifest(t.Context(), Tag(b.Digest))
	if err != nil {
		t.Fatal(err)
	}
	if err := repo.PushManifest(t.Context(), Tag(another.Digest), mediatype.OCIManifest, m.Bytes); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Read(t.Context(), repo, trust, another); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("the table of another blob: %v", err)
	}
}

// Statements that are signed, but wrong, are refused, and a chain that cannot be right is not signed.
func TestOpen(t *testing.T) {
	key, trust := newKey(1)
	b, chain := newBlob(t, 1)
	subject := []dsse.Subject{{Digest: map[string]string{"sha256": b.Digest.Encoded()}}}
	right := func() (dsse.Statement, predicate) {
		return dsse.Statement{Type: dsse.StatementType, Subject: subject, PredicateType: PredicateType}, predicate{b.Size, verify.Head, verify.Window, chain}
	}
	for name, change := range map[string]func(s *dsse.Statement, p *predicate){
		"right":         func(*dsse.Statement, *predicate) {},
		"predicate":     func(s *dsse.Statement, _ *predicate) { s.PredicateType += "x" },
		"no subject":    func(s *dsse.Statement, _ *predicate) { s.Subject = nil },
		"two subjects":  func(s *dsse.Statement, _ *predicate) { s.Subject = append(subject, subject...) },
		"size":          func(_ *dsse.Statement, p *predicate) { p.Size++ },
		"head":          func(_ *dsse.Statement, p *predicate) { p.Head *= 2 },
		"window":        func(_ *dsse.Statement, p *predicate) { p.Window *= 2 },
		"one state few": func(_ *dsse.Statement, p *predicate) { p.States = p.States[32:] },
		"no states":     func(_ *dsse.Statement, p *predicate) { p.States = nil },
	} {
		s, p := right()
		change(&s, &p)
		var err error
		if s.Predicate, err = json.Marshal(p); err != nil {
			t.Fatal(err)
		}
		bundle, err := dsse.Sign(key, s)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err = Open(bundle, trust, b); (err == nil) != (name == "right") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, bad := range map[string]struct {
		b filetable.Blob
		c verify.Chain
	}{"short": {b, chain[32:]}, "large": {filetable.Blob{Digest: b.Digest, Size: MaxBlob + 1}, make(verify.Chain, (1+MaxBlob/verify.Window)*32)}} {
		if _, err := Sign(key, bad.b, bad.c); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: signed, %v", name, err)
		}
	}
}

// The bundles of all blobs that can have one have at most as many bytes as are read, and can be read.
func TestLimit(t *testing.T) {
	key, trust := newKey(1)
	for _, size := range []int64{verify.Window + 1, 1 << 30, MaxBlob} {
		b := filetable.Blob{Digest: digest.FromString(""), Size: size}
		bundle, err := Sign(key, b, bytes.Repeat([]byte{0xff}, int(1+(size-1)/verify.Window)*32))
		if err != nil || int64(len(bundle)) > Limit(b) {
			t.Fatalf("%d bytes of at most %d, %v", len(bundle), Limit(b), err)
		}
		if _, _, err := Open(bundle, trust, b); err != nil {
			t.Error(err)
		}
	}
}

// FuzzOpen checks that what Open returns of any signed predicate can be the chain of the blob.
func FuzzOpen(f *testing.F) {
	key, trust := newKey(1)
	b, chain := newBlob(f, 1)
	p, err := json.Marshal(predicate{b.Size, verify.Head, verify.Window, chain})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(p, b.Size)
	f.Fuzz(func(t *testing.T, p []byte, size int64) {
		bundle, err := dsse.Sign(key, dsse.Statement{
			Type: dsse.StatementType, Subject: []dsse.Subject{{Digest: map[string]string{"sha256": b.Digest.Encoded()}}},
			PredicateType: PredicateType, Predicate: p,
		})
		if err != nil { // p is no JSON
			return
		}
		if c, _, err := Open(bundle, trust, filetable.Blob{Digest: b.Digest, Size: size}); err == nil && !c.Valid(size) {
			t.Errorf("%d bytes of states for %d", len(c), size)
		}
	})
}

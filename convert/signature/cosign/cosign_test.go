package cosign

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/signature/dsse"
	"github.com/ballast-dev/ballast/convert/signature/keyless"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// keys returns a key of each kind.
func keys(t *testing.T) map[string]crypto.Signer {
	t.Helper()
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	r, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]crypto.Signer{"P-256": p256, "P-384": p384, "RSA": r, "Ed25519": ed}
}

func TestBundle(t *testing.T) {
	manifest := digest.FromString("manifest")
	for name, key := range keys(t) {
		p, err := dsse.Sign(key, Statement(manifest))
		if err != nil {
			t.Fatal(err)
		}
		b, err := dsse.Parse(p)
		if err != nil {
			t.Fatal(err)
		}
		trust := &dsse.Trust{Keys: []crypto.PublicKey{key.Public()}}
		if _, err := Verify(b, trust, manifest); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Verify(b, trust, digest.FromString("other")); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s, another manifest: %v", name, err)
		}
		if _, err := Verify(b, &dsse.Trust{}, manifest); !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s, nobody is trusted: %v", name, err)
		}
		s := Statement(manifest)
		s.PredicateType = "https://model_signing/signature/v1.0"
		if p, err = dsse.Sign(key, s); err != nil {
			t.Fatal(err)
		}
		if b, err = dsse.Parse(p); err != nil {
			t.Fatal(err)
		}
		if _, err := Verify(b, trust, manifest); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s, another predicate: %v", name, err)
		}
	}
}

// TestKeyless accepts a keyless signature of a manifest by its identity, for this manifest alone.
func TestKeyless(t *testing.T) {
	const manifest = digest.Digest("sha256:5cf1132744dbb97e37dcd15414b7aada1a7c1b89f48b480824b39eca866d9446")
	p, err := os.ReadFile("testdata/keyless-bundle.json")
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.ReadFile("testdata/keyless-root.json")
	if err != nil {
		t.Fatal(err)
	}
	program := keyless.Program{Path: converttest.Keyless(t)}
	a, err := program.Verify(t.Context(), keyless.Request{TrustedRoot: root, Bundle: p})
	if err != nil {
		t.Fatal(err)
	}
	b, err := dsse.Parse(p)
	if err != nil {
		t.Fatal(err)
	}
	id := &dsse.Identity{Issuer: "https://accounts.example", Subject: "release@team.example", Root: digest.FromBytes(root)}
	b.Prove(id.Root, dsse.Proof{Signed: a.Signed, Issuer: a.Issuer, Subject: a.Subject})
	trust := &dsse.Trust{Identity: id}
	if _, err := Verify(b, trust, manifest); err != nil {
		t.Error(err)
	}
	if _, err := Verify(b, trust, digest.FromString("other")); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("another manifest: %v", err)
	}
	layer, blob := simple(t, keys(t)["P-256"], typeCosign, manifest)
	if _, err := VerifyPayload(layer, blob, trust, manifest); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "has to be in a bundle") {
		t.Errorf("without a bundle: %v", err)
	}
}

// simple signs a payload as cosign 2 does, with SHA-256 whatever the key.
func simple(t *testing.T, key crypto.Signer, typ string, manifest digest.Digest) (ocispec.Descriptor, []byte) {
	t.Helper()
	blob := fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":"r.example/m"},"image":{"docker-manifest-digest":%q},"type":%q},"optional":null}`, manifest, typ)
	message, opts := blob, crypto.SignerOpts(crypto.Hash(0))
	if _, ok := key.(ed25519.PrivateKey); !ok {
		sum := sha256.Sum256(blob)
		message, opts = sum[:], crypto.SHA256
	}
	sig, err := key.Sign(rand.Reader, message, opts)
	if err != nil {
		t.Fatal(err)
	}
	return ocispec.Descriptor{
		MediaType: mediatype.CosignPayload, Digest: digest.FromBytes(blob), Size: int64(len(blob)),
		Annotations: map[string]string{mediatype.CosignSignatureKey: base64.StdEncoding.EncodeToString(sig)},
	}, blob
}

func TestPayload(t *testing.T) {
	manifest := digest.FromString("manifest")
	for name, key := range keys(t) {
		trust := &dsse.Trust{Keys: []crypto.PublicKey{key.Public()}}
		layer, blob := simple(t, key, typeCosign, manifest)
		if _, err := VerifyPayload(layer, blob, trust, manifest); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := VerifyPayload(layer, blob, trust, digest.FromString("other")); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s, another manifest: %v", name, err)
		}
		for i := range blob {
			blob[i] ^= 1
			if _, err := VerifyPayload(layer, blob, trust, manifest); !errdefs.IsPermissionDenied(err) {
				t.Errorf("%s, byte %d changed: %v", name, i, err)
			}
			blob[i] ^= 1
		}
		layer, blob = simple(t, key, "something else", manifest)
		if _, err := VerifyPayload(layer, blob, trust, manifest); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s, another type: %v", name, err)
		}
		layer.Annotations = nil
		if _, err := VerifyPayload(layer, blob, trust, manifest); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s, no signature: %v", name, err)
		}
	}
}

func FuzzPayload(f *testing.F) {
	f.Add("MEUC", "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n", []byte(`{"critical":{}}`))
	f.Fuzz(func(t *testing.T, sig, cert string, blob []byte) {
		layer := ocispec.Descriptor{Annotations: map[string]string{mediatype.CosignSignatureKey: sig, mediatype.CosignCertificateKey: cert, mediatype.CosignChainKey: cert}}
		_, _ = VerifyPayload(layer, blob, &dsse.Trust{}, digest.FromString("x"))
	})
}

// TestVectors accepts what cosign made, and refuses it for another manifest or by another key.
func TestVectors(t *testing.T) {
	const manifest = digest.Digest("sha256:5cf1132744dbb97e37dcd15414b7aada1a7c1b89f48b480824b39eca866d9446")
	read := func(name string) []byte {
		p, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	key, err := dsse.ParseKeys(read("key.pub"))
	if err != nil {
		t.Fatal(err)
	}
	roots, err := dsse.ParseCertificates(read("ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	for name, trust := range map[string]*dsse.Trust{
		"key": {Keys: key}, "certificate": {Roots: roots, Subject: "email:release@team.example"},
	} {
		b, err := dsse.Parse(read(name + "-bundle.json"))
		if err != nil {
			t.Fatal(err)
		}
		var m ocispec.Manifest
		if err := json.Unmarshal(read(name+"-manifest.json"), &m); err != nil {
			t.Fatal(err)
		}
		forms := map[string]func(*dsse.Trust, digest.Digest) (string, error){
			"bundle": func(t *dsse.Trust, d digest.Digest) (string, error) { return Verify(b, t, d) },
			"payload": func(t *dsse.Trust, d digest.Digest) (string, error) {
				return VerifyPayload(m.Layers[0], read(name+"-payload.json"), t, d)
			},
		}
		for form, verify := range forms {
			if who, err := verify(trust, manifest); err != nil {
				t.Errorf("%s, %s: %v", name, form, err)
			} else {
				t.Logf("%s, %s: signed by %s", name, form, who)
			}
			if _, err := verify(trust, digest.FromString("other")); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("%s, %s, another manifest: %v", name, form, err)
			}
			for _, other := range []*dsse.Trust{{}, {Keys: []crypto.PublicKey{keys(t)["P-256"].Public()}}, {Roots: roots, Subject: "somebody"}} {
				if _, err := verify(other, manifest); !errdefs.IsPermissionDenied(err) {
					t.Errorf("%s, %s, somebody else is trusted: %v", name, form, err)
				}
			}
		}
	}
}

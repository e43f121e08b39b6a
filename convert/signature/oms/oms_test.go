package oms

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/signature/dsse"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// trusted trusts the key of the vectors, or the root of their certificates.
func trusted(t testing.TB, vector string) *dsse.Trust {
	t.Helper()
	var out dsse.Trust
	var err error
	if strings.HasSuffix(vector, "-key") {
		out.Keys, err = dsse.ParseKeys(read(t, "keys/signing-key-pub.pem"))
	} else {
		out.Roots, err = dsse.ParseCertificates(read(t, "keys/ca-cert.pem"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return &out
}

func read(t testing.TB, name string) []byte {
	t.Helper()
	p, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// files returns the files of a vector. Signatures before v1.1.0 do not list ignored paths.
func files(t testing.TB, vector string) (out []filetable.File) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join("testdata", vector))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() == "ignore-me" && vector < "v1.1.0" {
			continue
		}
		p := read(t, filepath.Join(vector, e.Name()))
		out = append(out, filetable.File{Path: e.Name(), Type: filetable.TypeReg, Size: int64(len(p)), Digest: digest.FromBytes(p)})
	}
	return out
}

// check does all that there is to verifying.
func check(p []byte, t *dsse.Trust, files []filetable.File) error {
	b, err := dsse.Parse(p)
	if err != nil {
		return err
	}
	s, err := Open(b, t)
	if err != nil {
		return err
	}
	return s.Covers(files)
}

func vectors(t testing.TB) []string {
	t.Helper()
	dirs, err := filepath.Glob("testdata/v*")
	if err != nil || len(dirs) < 8 {
		t.Fatalf("vectors %v, %v", dirs, err)
	}
	for i := range dirs {
		dirs[i] = filepath.Base(dirs[i])
	}
	return dirs
}

// TestVectors accepts what model-signing made, and refuses it with any byte of what is signed, of the
// signature, of the certificate of the signer or of a digest changed in one bit.
func TestVectors(t *testing.T) {
	for _, v := range vectors(t) {
		t.Run(v, func(t *testing.T) {
			p, trust, model := read(t, v+"/model.sig"), trusted(t, v), files(t, v)
			err := check(p, trust, model)
			if v == "v0.2.0-certificate" {
				if !errdefs.IsPermissionDenied(err) {
					t.Fatalf("a signature over something else: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for name, changed := range flipped(t, p) {
				if check(changed, trust, model) == nil {
					t.Errorf("accepted with %s changed", name)
				}
			}
			for i := range model {
				if model[i].Path == SignatureFile || model[i].Path == "ignore-me" {
					continue
				}
				other := slices.Clone(model)
				other[i].Digest = digest.FromString("other")
				if err := check(p, trust, other); !errdefs.IsFailedPrecondition(err) {
					t.Errorf("another %s: %v", model[i].Path, err)
				}
				if err := check(p, trust, slices.Delete(slices.Clone(model), i, i+1)); !errdefs.IsFailedPrecondition(err) {
					t.Errorf("%s missing: %v", model[i].Path, err)
				}
			}
			more := append(slices.Clone(model), filetable.File{Path: "z.py", Type: filetable.TypeReg, Digest: digest.FromString("z")})
			if err := check(p, trust, more); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("a file more: %v", err)
			}
		})
	}
}

// flipped returns the bundle with one bit changed at each byte that counts.
func flipped(t *testing.T, p []byte) map[string][]byte {
	t.Helper()
	type raw struct {
		RawBytes []byte `json:"rawBytes"`
	}
	var b struct {
		MediaType string `json:"mediaType"`
		Material  struct {
			Chain *struct {
				Certificates []raw `json:"certificates"`
			} `json:"x509CertificateChain,omitempty"`
		} `json:"verificationMaterial"`
		Envelope struct {
			Payload     []byte `json:"payload"`
			PayloadType string `json:"payloadType"`
			Signatures  []struct {
				Sig []byte `json:"sig"`
			} `json:"signatures"`
		} `json:"dsseEnvelope"`
	}
	if err := json.Unmarshal(p, &b); err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	flip := func(name string, field []byte) {
		for i := range field {
			field[i] ^= 1 << (i % 8)
			q, err := json.Marshal(b)
			if err != nil {
				t.Fatal(err)
			}
			out[fmt.Sprintf("byte %d of the %s", i, name)] = q
			field[i] ^= 1 << (i % 8)
		}
	}
	flip("payload", b.Envelope.Payload)
	flip("signature", b.Envelope.Signatures[0].Sig)
	if c := b.Material.Chain; c != nil {
		flip("certificate", c.Certificates[0].RawBytes)
	}
	return out
}

func TestTrust(t *testing.T) {
	const keyed, certified = "v1.1.0-elliptic-key", "v1.1.0-certificate"
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	stranger := &dsse.Trust{Keys: []crypto.PublicKey{&own.PublicKey}}
	named := func(s string) *dsse.Trust {
		c := *trusted(t, certified)
		c.Subject = s
		return &c
	}
	between, err := dsse.ParseCertificates(read(t, "keys/signing-key-cert.pem"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, vector string
		trust        *dsse.Trust
		ok           bool
	}{
		{"nobody", keyed, &dsse.Trust{}, false},
		{"another key", keyed, stranger, false},
		{"one of several keys", keyed, &dsse.Trust{Keys: append(stranger.Keys, trusted(t, keyed).Keys...)}, true},
		{"a key, and a certificate signed", certified, stranger, false},
		{"roots, and a key signed", keyed, trusted(t, certified), false},
		{"the key of the certificate", certified, trusted(t, keyed), true},
		{"the certificate itself as a root", certified, &dsse.Trust{Roots: between}, true},
		{"the subject of the certificate", certified, named("cn:" + between[0].Subject.CommonName), true},
		{"another subject", certified, named("cn:root-ca"), false},
	} {
		err := check(read(t, tt.vector+"/model.sig"), tt.trust, files(t, tt.vector))
		if (err == nil) != tt.ok || err != nil && !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s: %v, want accepted %v", tt.name, err, tt.ok)
		}
	}
}

// TestSignAndVerify reads what Statement writes, with all kinds of keys.
func TestSignAndVerify(t *testing.T) {
	model := files(t, "v1.1.0-certificate")
	for _, c := range []elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()} {
		key, err := ecdsa.GenerateKey(c, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Statement("model", model)
		if err != nil {
			t.Fatal(err)
		}
		p, err := dsse.Sign(key, s)
		if err != nil {
			t.Fatal(err)
		}
		trust := &dsse.Trust{Keys: []crypto.PublicKey{key.Public()}}
		if err := check(p, trust, model); err != nil {
			t.Errorf("%s: %v", c.Params().Name, err)
		}
		if err := check(bytes.Replace(p, []byte(`"sig":"M`), []byte(`"sig":"N`), 1), trust, model); !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s, changed: %v", c.Params().Name, err)
		}
	}
}

func TestUnusualLists(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	trust := &dsse.Trust{Keys: []crypto.PublicKey{key.Public()}}
	model := []filetable.File{
		{Path: "a", Type: filetable.TypeReg, Digest: digest.FromString("a")},
		{Path: "link", Type: filetable.TypeSymlink, Target: "a"},
	}
	sha := func(s string) string { return digest.FromString(s).Encoded() }
	for _, tt := range []struct {
		name, predicate, root string
		files                 []filetable.File
		want                  func(error) bool
	}{
		{"a link that is allowed", `{"serialization":{"method":"files","hash_type":"sha256","allow_symlinks":true},"resources":[{"name":"a","algorithm":"sha256","digest":"` + sha("a") + `"},{"name":"link","algorithm":"sha256","digest":"` + sha("a") + `"}]}`, "", model, func(err error) bool { return err == nil }},
		{"a link that is not", `{"serialization":{"method":"files","hash_type":"sha256"},"resources":[{"name":"a","algorithm":"sha256","digest":"` + sha("a") + `"},{"name":"link","algorithm":"sha256","digest":"` + sha("a") + `"}]}`, "", model, errdefs.IsFailedPrecondition},
		{"shards", `{"serialization":{"method":"shards","hash_type":"sha256"},"resources":[{"name":"a:0:1","algorithm":"sha256","digest":"` + sha("a") + `"}]}`, "", model[:1], errdefs.IsNotImplemented},
		{"blake", `{"serialization":{"method":"files","hash_type":"blake3"},"resources":[]}`, "", model[:1], errdefs.IsNotImplemented},
		{"twice", `{"serialization":{"method":"files","hash_type":"sha256"},"resources":[{"name":"a","algorithm":"sha256","digest":"` + sha("a") + `"},{"name":"./a","algorithm":"sha256","digest":"` + sha("b") + `"}]}`, "", model[:1], errdefs.IsInvalidArgument},
		{"another digest over all", `{"serialization":{"method":"files","hash_type":"sha256"},"resources":[{"name":"a","algorithm":"sha256","digest":"` + sha("a") + `"}]}`, sha("x"), model[:1], errdefs.IsDataLoss},
		{"a file of two alone", `{"serialization":{"method":"files","hash_type":"sha256"},"resources":[{"name":".","algorithm":"sha256","digest":"` + sha("a") + `"}]}`, "", append(model[:1:1], filetable.File{Path: "b", Type: filetable.TypeReg, Digest: digest.FromString("a")}), errdefs.IsFailedPrecondition},
		{"signed, but left out", `{"serialization":{"method":"files","hash_type":"sha256","ignore_paths":["a"]},"resources":[{"name":"a","algorithm":"sha256","digest":"` + sha("a") + `"}]}`, "", model[:1], errdefs.IsFailedPrecondition},
	} {
		var p predicate
		if err := json.Unmarshal([]byte(tt.predicate), &p); err != nil {
			t.Fatal(err)
		}
		hash := digest.SHA256.Hash()
		for _, r := range p.Resources {
			fmt.Fprintf(hash, "%s", unhex(t, r.Digest))
		}
		root := tt.root
		if root == "" {
			root = fmt.Sprintf("%x", hash.Sum(nil))
		}
		b, err := dsse.Sign(key, dsse.Statement{
			Type: dsse.StatementType, Subject: []dsse.Subject{{Name: "m", Digest: map[string]string{"sha256": root}}},
			PredicateType: PredicateType, Predicate: json.RawMessage(tt.predicate),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := check(b, trust, tt.files); !tt.want(err) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	var p []byte
	if _, err := fmt.Sscanf(s, "%x", &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func FuzzOpen(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add(read(f, v+"/model.sig"))
	}
	model := files(f, "v1.1.0-certificate")
	keys := trusted(f, "v1.1.0-elliptic-key")
	f.Fuzz(func(t *testing.T, p []byte) {
		_ = check(p, keys, model)
	})
}

// FuzzStatement reads statements of a trusted signer.
func FuzzStatement(f *testing.F) {
	f.Add([]byte(`{"serialization":{"method":"files","hash_type":"sha256","ignore_paths":["/",""]},"resources":[{"name":".","algorithm":"sha256","digest":""}]}`), "")
	model := files(f, "v1.1.0-certificate")
	f.Fuzz(func(t *testing.T, p []byte, root string) {
		s, err := open(&dsse.Statement{PredicateType: PredicateType, Predicate: p, Subject: []dsse.Subject{{Digest: map[string]string{"sha256": root}}}}, "x")
		if err == nil {
			_ = s.Covers(model)
		}
	})
}

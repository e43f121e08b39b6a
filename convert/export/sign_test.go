package export_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/ballast-dev/ballast/convert/layout"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/signature/cosign"
	"github.com/ballast-dev/ballast/convert/signature/dsse"
	"github.com/ballast-dev/ballast/convert/signature/oms"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestSign checks that a manifest is signed, and the files if their digests are known, in registries with
// and without lists of referrers, and that signing again adds nothing.
func TestSign(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	trust := &dsse.Trust{Keys: []crypto.PublicKey{key.Public()}}
	raw, packed := converttest.ModelPackRaw(converttest.Files(weights(70_000))), converttest.ModelPackTarGzip(converttest.Files(weights(70_000)))
	for _, tt := range []struct {
		name    string
		source  *converttest.Built
		o       export.Options
		subject bool
		files   bool // are signed
	}{
		{"ballast", raw, export.Options{}, true, true},
		{"ballast, by tag", raw, export.Options{}, false, true},
		{"ballast, compressed", raw, export.Options{Compress: export.CompressSeekable}, true, true},
		{"modelpack", raw, export.Options{Form: export.FormModelPack}, true, true},
		{"modelpack of an archive", packed, export.Options{Form: export.FormModelPack}, false, true},
		{"ballast of an archive", packed, export.Options{}, true, false},
		{"tars", raw, export.Options{Form: export.FormModelPack, Tar: true}, true, false},
		{"cnai", raw, export.Options{Form: export.FormCNAI}, true, false},
		{"image", raw, export.Options{Form: export.FormImage}, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, c := registrytest.New(t), client(t, remote.Credentials{})
			s.Referrers = tt.subject
			src := fromServer(t, c, s.Add("from/model", "v1", tt.source))
			tt.o.Sign, tt.o.TempDir = export.WithKey(key), t.TempDir()
			ref := s.Host() + "/signed/model:v1"
			var res *export.Result
			for range 2 {
				if res, err = export.Run(t.Context(), src, toServer(t, c, ref), tt.o); err != nil {
					t.Fatal(err)
				}
			}
			said := strings.Contains(strings.Join(res.Losses, "\n"), "a signature over the files")
			if said == tt.files {
				t.Errorf("losses %q, want the files signed %v", res.Losses, tt.files)
			}
			repo, err := c.Repository(remote.Ref{Host: s.Host(), Repository: "signed/model"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			list, err := repo.Referrers(t.Context(), res.Digest, 10, mediatype.Bundle)
			if err != nil {
				t.Fatal(err)
			}
			found := map[string]error{}
			for _, d := range list {
				var m ocispec.Manifest
				if err := json.Unmarshal(s.Manifest("signed/model", d.Digest.String()), &m); err != nil || m.Subject.Digest != res.Digest || int(m.Subject.Size) != len(res.Manifest) {
					t.Fatalf("manifest %s: %+v, %v", d.Digest, m, err)
				}
				b, err := dsse.Parse(s.Blob("signed/model", m.Layers[0].Digest))
				if err != nil {
					t.Fatal(err)
				}
				found[b.PredicateType()] = look(b, trust, res.Digest, tt.source)
			}
			for kind, err := range found {
				if err != nil {
					t.Errorf("%s: %v", kind, err)
				}
			}
			_, signed := found[oms.PredicateType]
			if _, ok := found[cosign.PredicateType]; !ok || signed != tt.files || len(list) != len(found) {
				t.Errorf("%d signatures %v, want one of each kind", len(list), found)
			}
		})
	}
}

// look verifies a bundle.
func look(b *dsse.Bundle, trust *dsse.Trust, manifest digest.Digest, of *converttest.Built) error {
	switch b.PredicateType() {
	case cosign.PredicateType:
		_, err := cosign.Verify(b, trust, manifest)
		return err
	case oms.PredicateType:
		s, err := oms.Open(b, trust)
		if err != nil {
			return err
		}
		var files []filetable.File
		for p, f := range of.Files {
			files = append(files, filetable.File{Path: p, Type: filetable.TypeReg, Digest: digest.FromBytes(f.Data)})
		}
		return s.Covers(files)
	}
	return fmt.Errorf("predicate %s", b.PredicateType())
}

// TestSignLayout checks that a layout with signatures still has one model.
func TestSignLayout(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, c, dir := registrytest.New(t), client(t, remote.Credentials{}), t.TempDir()
	b := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	src := fromServer(t, c, s.Add("from/model", "v1", b))
	for range 2 {
		if _, err := export.Run(t.Context(), src, toLayout(t, dir, "v1"), export.Options{Sign: export.WithKey(key)}); err != nil {
			t.Fatal(err)
		}
	}
	p, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	var idx ocispec.Index
	if err := json.Unmarshal(p, &idx); err != nil || len(idx.Manifests) != 3 {
		t.Fatalf("index %s, %v", p, err)
	}
	l, err := layout.Open(dir, "")
	if err != nil {
		t.Fatalf("the one model of the layout: %v", err)
	}
	l.Close()
}

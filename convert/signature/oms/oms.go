package oms

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert/signature/dsse"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// PredicateType is the predicate type of a model signature.
const PredicateType = "https://model_signing/signature/v1.0"

// SignatureFile is the path of the signature in a model.
const SignatureFile = "model.sig"

// alwaysIgnored are the paths that no signature covers.
var alwaysIgnored = []string{".git", ".gitattributes", ".github", ".gitignore", SignatureFile}

// The supported way to list files.
const (
	methodFiles = "files"
	hashSHA256  = "sha256"
)

// alone is the path in the signature of a model that is one file.
const alone = "."

type predicate struct {
	Serialization serialization `json:"serialization"`
	Resources     []resource    `json:"resources"`
}

type serialization struct {
	Method        string   `json:"method"`
	HashType      string   `json:"hash_type"`
	AllowSymlinks bool     `json:"allow_symlinks"`
	IgnorePaths   []string `json:"ignore_paths,omitempty"`
}

type resource struct {
	Name      string `json:"name"`
	Algorithm string `json:"algorithm"`
	Digest    string `json:"digest"`
}

// A Signature is a model signature by a trusted signer. Its files have not been compared yet.
type Signature struct {
	signer  string
	p       predicate
	digests map[string]digest.Digest // by clean path
}

// Open verifies the signer of a bundle and reads its list of files. It returns
// errdefs.ErrPermissionDenied if no trusted signer signed it, errdefs.ErrNotImplemented for a list
// that cannot be compared with digests of files, and errdefs.ErrInvalidArgument for an invalid one.
func Open(b *dsse.Bundle, t *dsse.Trust) (*Signature, error) {
	s, signer, err := t.Verify(b)
	if err != nil {
		return nil, err
	}
	return open(s, signer)
}

func open(s *dsse.Statement, signer string) (*Signature, error) {
	if s.PredicateType != PredicateType || len(s.Subject) != 1 {
		return nil, fmt.Errorf("a statement %.100q of %d subjects is not the signature of a model: %w", s.PredicateType, len(s.Subject), errdefs.ErrInvalidArgument)
	}
	out := &Signature{signer: signer}
	if err := json.Unmarshal(s.Predicate, &out.p); err != nil {
		return nil, fmt.Errorf("signature of a model: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if z := out.p.Serialization; z.Method != methodFiles || z.HashType != hashSHA256 {
		return nil, fmt.Errorf("the signature lists %.50q by %.50q; sign with \"files\" and \"sha256\": %w", z.Method, z.HashType, errdefs.ErrNotImplemented)
	}
	return out, out.read(digest.Digest("sha256:" + s.Subject[0].Digest[hashSHA256]))
}

// read reads the resources and checks the digest over them.
func (s *Signature) read(root digest.Digest) error {
	hash := sha256.New()
	s.digests = make(map[string]digest.Digest, len(s.p.Resources))
	for _, r := range s.p.Resources {
		raw, err := hex.DecodeString(r.Digest)
		if err != nil || len(raw) != sha256.Size || r.Algorithm != hashSHA256 {
			return fmt.Errorf("signature of a model: %.200q has no sha256: %w", r.Name, errdefs.ErrInvalidArgument)
		}
		name := path.Clean(r.Name)
		if _, ok := s.digests[name]; ok {
			return fmt.Errorf("signature of a model: %.200q is listed twice: %w", r.Name, errdefs.ErrInvalidArgument)
		}
		hash.Write(raw)
		s.digests[name] = digest.NewDigestFromEncoded(digest.SHA256, hex.EncodeToString(raw))
	}
	if err := verify.Compare(root, digest.NewDigest(digest.SHA256, hash), 0, 0); err != nil {
		return fmt.Errorf("signature of a model: the digest over its files: %w", err)
	}
	return nil
}

// Signer returns the signer.
func (s *Signature) Signer() string { return s.signer }

// Covers compares the files of a model, sorted by path, without duplicates and with digests, with
// the signed files. It returns errdefs.ErrFailedPrecondition with the first file that is unsigned,
// different or missing.
func (s *Signature) Covers(files []filetable.File) error {
	refuse := func(name, why string) error {
		return fmt.Errorf("file %.300q %s: %w", name, why, errdefs.ErrFailedPrecondition)
	}
	byPath := make(map[string]filetable.File, len(files))
	for _, f := range files {
		byPath[f.Path] = f
	}
	seen := 0
	for _, f := range files {
		if f.Type == filetable.TypeDir || s.ignores(f.Path) {
			continue
		}
		if f.Type == filetable.TypeSymlink {
			if !s.p.Serialization.AllowSymlinks {
				return refuse(f.Path, "is a symbolic link, which the signature does not allow")
			}
			target := byPath[path.Join(path.Dir(f.Path), f.Target)]
			if target.Type != filetable.TypeReg {
				return refuse(f.Path, "is a symbolic link to something that is not a file of the model")
			}
			f.Digest = target.Digest
		}
		want, ok := s.digests[f.Path]
		if !ok && len(s.digests) == 1 && seen == 0 {
			want, ok = s.digests[alone]
		}
		if !ok {
			return refuse(f.Path, "is not signed")
		}
		if verify.Compare(want, f.Digest, 0, 0) != nil {
			return refuse(f.Path, "differs from the signed one")
		}
		seen++
	}
	if seen == len(s.digests) {
		return nil
	}
	for _, r := range s.p.Resources {
		if _, ok := byPath[path.Clean(r.Name)]; !ok {
			return refuse(r.Name, "is signed but missing from the model")
		}
	}
	return refuse(s.p.Resources[0].Name, "is signed but must be ignored")
}

// ignores reports whether a path is not covered.
func (s *Signature) ignores(p string) bool {
	under := func(i string) bool {
		i = path.Clean(i)
		return p == i || strings.HasPrefix(p, i+"/")
	}
	return slices.ContainsFunc(alwaysIgnored, under) || slices.ContainsFunc(s.p.Serialization.IgnorePaths, under)
}

// Statement returns the statement to sign for a model with a name and files, all with digests. It
// returns errdefs.ErrFailedPrecondition for a model with symbolic links.
func Statement(name string, files []filetable.File) (dsse.Statement, error) {
	p := predicate{
		Serialization: serialization{Method: methodFiles, HashType: hashSHA256, IgnorePaths: alwaysIgnored},
		Resources:     []resource{},
	}
	all := (&Signature{p: p}).ignores
	hash := sha256.New()
	for _, f := range files {
		if f.Type == filetable.TypeDir || all(f.Path) {
			continue
		}
		d, err := verify.ParseDigest(f.Digest.String())
		if err != nil || f.Type != filetable.TypeReg {
			return dsse.Statement{}, fmt.Errorf("file %q cannot be signed: it is a link, or its digest is unknown: %w", f.Path, errdefs.ErrFailedPrecondition)
		}
		raw, err := hex.DecodeString(d.Encoded())
		if err != nil {
			panic("oms: internal error: " + err.Error()) // parsed above
		}
		hash.Write(raw)
		p.Resources = append(p.Resources, resource{Name: f.Path, Algorithm: hashSHA256, Digest: d.Encoded()})
	}
	encoded, err := json.Marshal(p)
	if err != nil {
		return dsse.Statement{}, err
	}
	return dsse.Statement{
		Type:          dsse.StatementType,
		Subject:       []dsse.Subject{{Name: name, Digest: map[string]string{hashSHA256: hex.EncodeToString(hash.Sum(nil))}}},
		PredicateType: PredicateType, Predicate: encoded,
	}, nil
}

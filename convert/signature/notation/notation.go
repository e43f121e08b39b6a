// Package notation verifies signatures of the Notary Project with its own library: as for the
// notation command, the policy defines what is trusted and how strictly.
//
// A policy is a file trustpolicy.json beside a directory truststore, the layout of notation's
// configuration. A policy with level skip or audit accepts everything. Plugins are not run, because
// verification runs as root. If the policy requires revocation checks, the library requests only
// addresses in certificates below a trusted root.
package notation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
	lib "github.com/notaryproject/notation-go"
	"github.com/notaryproject/notation-go/dir"
	"github.com/notaryproject/notation-go/registry"
	"github.com/notaryproject/notation-go/verifier"
	"github.com/notaryproject/notation-go/verifier/trustpolicy"
	"github.com/notaryproject/notation-go/verifier/truststore"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Limits.
const (
	maxEnvelope   = 4 << 20 // of one signature, as in notation
	maxSignatures = 32      // of one manifest
	maxFile       = 1 << 20 // of a policy or a certificate
	maxFiles      = 1000    // of a trust store
)

// A Verifier verifies signatures by one policy.
type Verifier struct{ v lib.Verifier }

// Load reads a policy. It also returns what its verdicts depend on: the policy and the
// certificates.
func Load(file string) (*Verifier, []string, error) {
	p, err := readFile(file)
	if err != nil {
		return nil, nil, fmt.Errorf("policy: %w", err)
	}
	var doc trustpolicy.Document
	if err := json.Unmarshal(p, &doc); err != nil {
		return nil, nil, fmt.Errorf("policy %s: %w: %w", file, err, errdefs.ErrInvalidArgument)
	}
	root := filepath.Dir(file)
	v, err := verifier.New(&doc, truststore.NewX509TrustStore(dir.NewSysFS(root)), nil)
	if err != nil {
		return nil, nil, fmt.Errorf("policy %s: %w: %w", file, err, errdefs.ErrInvalidArgument)
	}
	material := []string{string(p)}
	err = filepath.WalkDir(filepath.Join(root, "truststore"), func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		if len(material) > maxFiles {
			return fmt.Errorf("more than %d files: %w", maxFiles, errdefs.ErrInvalidArgument)
		}
		p, err := readFile(name)
		material = append(material, name, string(p))
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("trust store: %w", err)
	}
	return &Verifier{v}, material, nil
}

func readFile(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err == nil && info.Size() > maxFile {
		err = fmt.Errorf("%s has more than %d bytes: %w", name, maxFile, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return nil, err
	}
	return os.ReadFile(name)
}

// Verify returns the signer of a manifest, or a text if the policy requires no signature. It
// returns errdefs.ErrPermissionDenied if no trusted signer signed the manifest, and otherwise the
// errors of remote.Repository.
func (v *Verifier) Verify(ctx context.Context, repo *remote.Repository, manifest digest.Digest) (string, error) {
	r := &repository{repo: repo}
	_, outcomes, err := lib.Verify(ctx, v.v, r, lib.VerifyOptions{
		ArtifactReference: repo.String() + "@" + manifest.String(), MaxSignatureAttempts: maxSignatures,
	})
	switch {
	case r.err != nil:
		return "", r.err
	case err != nil:
		return "", fmt.Errorf("%w: %w", err, errdefs.ErrPermissionDenied)
	case len(outcomes) == 0 || outcomes[0].EnvelopeContent == nil:
		return "nobody: the policy requires no signature", nil
	}
	chain := outcomes[0].EnvelopeContent.SignerInfo.CertificateChain
	if len(chain) == 0 {
		return "", fmt.Errorf("a signature without a certificate: %w", errdefs.ErrPermissionDenied)
	}
	return "certificate of " + chain[0].Subject.String(), nil
}

// A repository adapts a remote.Repository to the library. It keeps the error of a request.
type repository struct {
	repo *remote.Repository
	err  error
}

var _ registry.Repository = (*repository)(nil)

// Resolve returns the descriptor of a manifest, which is what signatures cover.
func (r *repository) Resolve(ctx context.Context, object string) (ocispec.Descriptor, error) {
	m, err := r.repo.Manifest(ctx, object)
	if err != nil {
		r.err = err
		return ocispec.Descriptor{}, err
	}
	parsed, err := convert.ParseManifest(m.Bytes)
	if err != nil {
		r.err = err
		return ocispec.Descriptor{}, err
	}
	d := ocispec.Descriptor{MediaType: parsed.MediaType, Digest: m.Digest, Size: int64(len(m.Bytes))}
	if d.MediaType == "" {
		d.MediaType = m.ContentType
	}
	return d, nil
}

// ListSignatures calls fn with the signatures of a manifest.
func (r *repository) ListSignatures(ctx context.Context, desc ocispec.Descriptor, fn func([]ocispec.Descriptor) error) error {
	list, err := r.repo.Referrers(ctx, desc.Digest, maxSignatures, mediatype.Notation)
	if err != nil {
		r.err = err
		return err
	}
	return fn(list)
}

// FetchSignatureBlob returns the only layer of a manifest with a signature.
func (r *repository) FetchSignatureBlob(ctx context.Context, desc ocispec.Descriptor) ([]byte, ocispec.Descriptor, error) {
	served, err := r.repo.Manifest(ctx, desc.Digest.String())
	if err != nil {
		return nil, ocispec.Descriptor{}, err
	}
	m, err := convert.ParseManifest(served.Bytes)
	if err != nil {
		return nil, ocispec.Descriptor{}, err
	}
	if len(m.Layers) != 1 {
		return nil, ocispec.Descriptor{}, fmt.Errorf("signature %s has %d layers, not one: %w", desc.Digest, len(m.Layers), errdefs.ErrInvalidArgument)
	}
	layer := m.Layers[0].Descriptor
	p, err := r.repo.Artifact(served).ReadBlob(ctx, layer, maxEnvelope)
	return p, layer, err
}

// PushSignature is not supported.
func (r *repository) PushSignature(context.Context, string, []byte, ocispec.Descriptor, map[string]string) (blob, manifest ocispec.Descriptor, err error) {
	return blob, manifest, errors.New("signing is not supported")
}

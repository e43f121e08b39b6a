package signature

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/signature/cosign"
	"github.com/ballast-dev/ballast/convert/signature/dsse"
	"github.com/ballast-dev/ballast/convert/signature/keyless"
	"github.com/ballast-dev/ballast/convert/signature/oms"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Limits of a Check.
const (
	maxSignatures = 32       // of one manifest, of each kind
	maxBytes      = 32 << 20 // of all signatures together
	maxManifest   = 1 << 20  // of one manifest with signatures
	maxReasons    = 4        // reported
	maxReason     = 500      // bytes of one reason
)

// evidence has the signatures found, once for all rules.
type evidence struct {
	c     *Checker
	s     Subject
	rules []*Rule
	left  int64 // bytes that may still be read

	anyone bool // keep bundles whoever signed them

	gathered bool
	unread   bool // model.sig exists, but cannot be read before the model is complete
	bundles  []bundle
	payloads []payload
	problems []string // unreadable signatures; irrelevant if another signature is valid
	err      error    // error that may have hidden a signature
	unproven error    // why a keyless signature could not be verified
}

// A bundle is a signed statement with the manifest it was found for; none if it is a file of the
// model.
type bundle struct {
	*dsse.Bundle
	of digest.Digest
}

// A payload is a cosign signature without a bundle.
type payload struct {
	layer ocispec.Descriptor
	blob  []byte
	of    digest.Digest
}

// find looks for a signature that satisfies a rule.
func (e *evidence) find(ctx context.Context, r *Rule, m model) (state State, v store.Verdict, reasons []string, err error) {
	e.gather(ctx, m)
	reasons = append(reasons, e.problems...)
	pending := false
	for _, s := range r.signers {
		who, err := e.by(s, m)
		switch {
		case err == nil:
			return Accepted, store.Verdict{Signers: []string{s.about + ": " + who}, Whole: s.kind == TypeOMS && m.chunked()}, nil, nil
		case errdefs.IsUnavailable(err) && m.table != nil && !m.all && s.kind == TypeOMS:
			pending = true
		case errdefs.IsUnavailable(err):
			e.err = err
		}
		reasons = append(reasons, s.about+": "+err.Error())
	}
	switch {
	case pending:
		return Pending, v, limitReasons(reasons), nil
	case e.err != nil:
		return Failed, v, limitReasons([]string{e.err.Error()}), e.err
	}
	return Refused, v, limitReasons(reasons), nil
}

// limitReasons limits the number and length of reasons.
func limitReasons(reasons []string) (out []string) {
	for i, s := range reasons {
		if i == maxReasons {
			return append(out, fmt.Sprintf("and %d more", len(reasons)-i))
		}
		if len(s) > maxReason {
			s = strings.ToValidUTF8(s[:maxReason], "") + "…"
		}
		out = append(out, s)
	}
	return out
}

// by looks for a signature by one signer.
func (e *evidence) by(s signer, m model) (who string, err error) {
	err = errNone
	switch s.kind {
	case TypeOMS:
		if m.table == nil {
			return "", fmt.Errorf("not a single model: %w", errdefs.ErrFailedPrecondition)
		}
		for _, b := range e.bundles {
			if b.PredicateType() != oms.PredicateType {
				continue
			}
			if who, err = covers(b.Bundle, s.trust, m); err == nil || errdefs.IsUnavailable(err) {
				return who, err
			}
		}
		if err == errNone && !m.all && (!m.known || e.unread) { // the signature may be in an archive
			err = fmt.Errorf("%w yet: %w", err, errdefs.ErrUnavailable)
		}
	case TypeCosign:
		for _, b := range e.bundles {
			if b.of == "" || b.PredicateType() != cosign.PredicateType {
				continue
			}
			who, err = cosign.Verify(b.Bundle, s.trust, b.of)
			if err = cmp.Or(err, e.counts(b.of)); err == nil {
				return who, nil
			}
		}
		for _, p := range e.payloads {
			who, err = cosign.VerifyPayload(p.layer, p.blob, s.trust, p.of)
			if err = cmp.Or(err, e.counts(p.of)); err == nil {
				return who, nil
			}
		}
	}
	return "", err
}

// counts returns an error if a signature of a manifest does not cover the files of the model.
func (e *evidence) counts(of digest.Digest) error {
	if !slices.Contains(e.s.FilesOnly, of) {
		return nil
	}
	return fmt.Errorf("signed, but a signature of manifest %s does not cover the files in its archive: sign them (oms), or the converted image: %w", of, errdefs.ErrFailedPrecondition)
}

// covers returns the signer of a model. errdefs.ErrUnavailable means that a trusted signer signed
// it, but the files to compare are not yet known.
func covers(b *dsse.Bundle, t *dsse.Trust, m model) (string, error) {
	sig, err := oms.Open(b, t)
	if err != nil {
		return "", err
	}
	if !m.known && !m.all {
		return "", fmt.Errorf("signed by %s, but its files are not known until it is complete: %w", sig.Signer(), errdefs.ErrUnavailable)
	}
	return sig.Signer(), sig.Covers(m.files)
}

// gather reads everything that may be a bundle or a payload.
func (e *evidence) gather(ctx context.Context, m model) {
	if e.gathered {
		return
	}
	e.gathered, e.left = true, maxBytes
	p, err := e.file(ctx, m)
	switch {
	case err == nil:
		e.add(ctx, p, "", oms.SignatureFile)
	case errdefs.IsInvalidArgument(err):
		e.problems = append(e.problems, err.Error())
	case !errdefs.IsNotFound(err):
		e.unread = true
	}
	answered := len(e.s.Repositories) == 0
	for i, repo := range e.s.Repositories {
		if i > 0 && e.enough(m) {
			break
		}
		answered = e.from(ctx, repo) || answered
	}
	found := len(e.bundles)+len(e.payloads) > 0
	gone := ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled) // the caller is: that says nothing of the registry
	if len(e.s.Repositories) > 0 && !gone {
		e.c.slots.answered(e.s.host(), answered || found && ctx.Err() == nil)
	}
	if context.Cause(ctx) == errPatience {
		e.err = fmt.Errorf("%w: %w", errPatience, errdefs.ErrUnavailable)
	}
	if answered {
		e.err = nil // the same repository answered with other credentials, or without
	}
	if e.err == nil {
		e.err = e.unproven
	}
}

// enough reports whether no other repository has to be asked.
func (e *evidence) enough(m model) bool {
	if e.anyone {
		return len(e.bundles)+len(e.payloads) > 0
	}
	return !slices.ContainsFunc(e.rules, func(r *Rule) bool {
		return len(r.signers) > 0 && !slices.ContainsFunc(r.signers, func(s signer) bool { _, err := e.by(s, m); return err == nil })
	})
}

// from reads the signatures in a repository and reports whether it answered all requests.
func (e *evidence) from(ctx context.Context, repo *remote.Repository) bool {
	earlier, answered := e.err, true
	e.err = nil
	for _, of := range e.s.Manifests {
		for _, read := range []func(context.Context, *remote.Repository, digest.Digest) error{e.referrers, e.signatures} {
			if err := read(ctx, repo, of); err != nil {
				e.addProblem(err)
				answered = false
			}
		}
	}
	answered = answered && e.err == nil // a part of a signature may be what was not answered
	e.err = cmp.Or(earlier, e.err)
	return answered
}

// addProblem records an error, which counts if no signature is found.
func (e *evidence) addProblem(err error) {
	switch {
	case err == nil:
	case errdefs.IsNotFound(err), errdefs.IsInvalidArgument(err), errdefs.IsNotImplemented(err), errdefs.IsDataLoss(err):
		e.problems = append(e.problems, err.Error())
	case e.err == nil:
		e.err = err
	}
}

// add adds a bundle if a trusted signer signed it. Of other bundles only the reason is kept.
func (e *evidence) add(ctx context.Context, p []byte, of digest.Digest, where string) {
	b, err := dsse.Parse(p)
	if err == nil && !e.anyone {
		e.prove(ctx, b, p)
		err = e.trusted(b)
	}
	if err != nil {
		e.problems = append(e.problems, fmt.Sprintf("%s: %v", where, err))
		return
	}
	e.bundles = append(e.bundles, bundle{b, of})
}

// prove has a bundle verified, once by each trusted root of the rules.
func (e *evidence) prove(ctx context.Context, b *dsse.Bundle, p []byte) {
	for _, r := range e.rules {
		for _, s := range r.signers {
			id := s.trust.Identity
			if id == nil || !b.Unproven(id.Root) {
				continue
			}
			a, err := e.c.Keyless.Verify(ctx, keyless.Request{TrustedRoot: s.root, Bundle: p})
			if errdefs.IsUnavailable(err) && e.unproven == nil {
				e.unproven = err
			}
			b.Prove(id.Root, dsse.Proof{Signed: a.Signed, Issuer: a.Issuer, Subject: a.Subject, Err: err})
		}
	}
}

// trusted returns nil if a signer of any rule signed a bundle.
func (e *evidence) trusted(b *dsse.Bundle) (err error) {
	for _, r := range e.rules {
		for _, s := range r.signers {
			if s.trust == nil {
				continue
			}
			if _, err = s.trust.Signer(b); err == nil {
				return nil
			}
		}
	}
	if err == nil {
		err = errNone // no rule has keys or certificates
	}
	return err
}

// referrers reads the referrers of a manifest.
func (e *evidence) referrers(ctx context.Context, repo *remote.Repository, of digest.Digest) error {
	// Some registries list the type of the config instead of the artifactType.
	list, err := repo.Referrers(ctx, of, maxSignatures, mediatype.Bundle, mediatype.CosignSignature, mediatype.OCIEmpty)
	if err != nil {
		return err
	}
	for _, d := range list {
		if d.Size > maxManifest {
			continue
		}
		if err := e.manifest(ctx, repo, d.Digest.String(), of); err != nil {
			e.addProblem(err)
		}
	}
	return nil
}

// signatures reads signatures that cosign attached by tag, before it used referrers.
// https://github.com/sigstore/cosign/blob/v3.0.2/specs/SIGNATURE_SPEC.md#tag-based-discovery
func (e *evidence) signatures(ctx context.Context, repo *remote.Repository, of digest.Digest) error {
	err := e.manifest(ctx, repo, remote.ReferrersTag(of)+".sig", of)
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// manifest reads the signatures in the layers of a manifest.
func (e *evidence) manifest(ctx context.Context, repo *remote.Repository, object string, of digest.Digest) error {
	served, err := repo.Manifest(ctx, object)
	if err != nil {
		return err
	}
	if len(served.Bytes) > maxManifest {
		return fmt.Errorf("signature %s: a manifest of more than %d bytes: %w", object, maxManifest, errdefs.ErrInvalidArgument)
	}
	m, err := convert.ParseManifest(served.Bytes)
	if err != nil {
		return fmt.Errorf("signature %s: %w", object, err)
	}
	artifact := repo.Artifact(served)
	for i, l := range m.Layers {
		limit := int64(dsse.MaxSize)
		if l.MediaType == mediatype.CosignPayload {
			limit = cosign.MaxPayload
		} else if !mediatype.IsBundle(l.MediaType) {
			continue
		}
		if i >= maxSignatures {
			break
		}
		if l.Size > limit { // an attestation, for example
			e.problems = append(e.problems, fmt.Sprintf("signature %s: %d bytes, more than %d", object, l.Size, limit))
			continue
		}
		if e.left -= l.Size; e.left < 0 {
			return fmt.Errorf("the signatures of %s have more than %d bytes: %w", of, maxBytes, errdefs.ErrInvalidArgument)
		}
		p, err := artifact.ReadBlob(ctx, l.Descriptor, limit)
		switch {
		case err != nil:
			e.addProblem(fmt.Errorf("signature %s: %w", object, err))
		case l.MediaType == mediatype.CosignPayload:
			e.payloads = append(e.payloads, payload{l.Descriptor, p, of})
		default:
			e.add(ctx, p, of, "signature "+object)
		}
	}
	return nil
}

// file reads the signature that is a file of the model. It returns errdefs.ErrNotFound if there is
// none, and errdefs.ErrUnavailable if it cannot be read before the model is complete.
func (e *evidence) file(ctx context.Context, m model) ([]byte, error) {
	for _, f := range m.files {
		if f.Path != oms.SignatureFile || f.Type != filetable.TypeReg {
			continue
		}
		if f.Size > dsse.MaxSize {
			return nil, fmt.Errorf("%s has %d bytes, more than %d: %w", f.Path, f.Size, dsse.MaxSize, errdefs.ErrInvalidArgument)
		}
		if f.Digest == "" {
			return nil, errdefs.ErrUnavailable
		}
		if p, err := e.c.Store.ReadBytes(f.Digest, dsse.MaxSize, e.s.Names); err == nil {
			return p, nil
		}
		if p, err := e.fetch(ctx, m, f); err == nil {
			return p, nil
		}
		return nil, errdefs.ErrUnavailable
	}
	return nil, errdefs.ErrNotFound
}

// fetch reads a file that is a range of a blob, or in the table.
func (e *evidence) fetch(ctx context.Context, m model, f filetable.File) (p []byte, err error) {
	src := f.Source
	if src == nil || len(src.Parts) > 0 || src.Codec != filetable.CodecNone {
		return nil, errdefs.ErrNotFound
	}
	if src.Blob == "" {
		return src.Inline, nil
	}
	for _, b := range m.table.Blobs {
		if b.Digest != src.Blob || b.Codec != filetable.CodecNone || b.Archive == filetable.ArchiveChunks {
			continue
		}
		for _, repo := range e.s.Repositories {
			if p, err = e.read(ctx, repo, b, f); err == nil {
				return p, nil
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, errdefs.ErrNotFound
}

// read reads a range of a blob. If the server does not support ranges, it returns
// errdefs.ErrNotFound and the file is read later.
func (e *evidence) read(ctx context.Context, repo *remote.Repository, b filetable.Blob, f filetable.File) ([]byte, error) {
	body, start, err := repo.Fetch(ctx, b.Digest, b.Size, f.Source.Offset, f.Size)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path, err)
	}
	defer body.Close()
	if start != f.Source.Offset {
		return nil, errdefs.ErrNotFound
	}
	return verify.Read(body, f.Digest, f.Size, dsse.MaxSize)
}

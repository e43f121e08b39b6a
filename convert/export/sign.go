package export

import (
	"context"
	"encoding/base64"
	"fmt"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/signature/cosign"
	"github.com/ballast-dev/ballast/convert/signature/dsse"
	"github.com/ballast-dev/ballast/convert/signature/oms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxStatement limits a statement as JSON, in bytes: its bundle has it in base64, and beside it certificates, entries
// of logs and timestamps.
const maxStatement = (dsse.MaxSize - 64<<10) / 4 * 3

// sign attaches two signatures to the manifest that is about to be written: one of the manifest, as
// made by cosign, and one of the files, as made by model-signing. They are written before the name,
// so that the model is never visible without them. What is not signed is a loss of res.
func (w *writer) sign(ctx context.Context, docs documents, res *Result) error {
	subject := docs.desc()
	statements := []dsse.Statement{cosign.Statement(subject.Digest)}
	files, err := docs.files()
	if err == nil {
		var s dsse.Statement
		if s, err = oms.Statement(w.dst.String(), files); err == nil {
			if n := len(encode(s)); n <= maxStatement {
				statements = append(statements, s)
			} else {
				err = fmt.Errorf("it would have %d bytes for %d files, and readers take %d", base64.StdEncoding.EncodedLen(n), len(files), dsse.MaxSize)
			}
		}
	}
	if err != nil {
		res.Losses = append(res.Losses, fmt.Sprintf("a signature over the files (the manifest is signed): %v", err))
	}
	bundles, by, err := w.o.Sign(ctx, statements)
	if err != nil {
		return fmt.Errorf("sign: %w", err)
	}
	res.SignedBy = by
	for i, s := range statements {
		// https://github.com/sigstore/cosign/blob/v3.0.2/specs/BUNDLE_SPEC.md
		err := w.attach(ctx, subject, mediatype.Bundle, bundles[i], map[string]string{
			mediatype.BundleContentKey: "dsse-envelope", mediatype.BundlePredicateKey: s.PredicateType,
		})
		if err != nil {
			return fmt.Errorf("signature: %w", err)
		}
	}
	return nil
}

// attach writes an artifact with one layer, which has its type, as a referrer of a manifest.
func (w *writer) attach(ctx context.Context, subject ocispec.Descriptor, artifactType string, p []byte, annotations map[string]string) error {
	for _, b := range [][]byte{remote.EmptyConfig, p} {
		if err := w.putBytes(ctx, b); err != nil {
			return err
		}
	}
	m := remote.OneLayer(artifactType, ocispec.Descriptor{MediaType: artifactType, Digest: digest.FromBytes(p), Size: int64(len(p))})
	m.Subject, m.Annotations = &subject, annotations
	return w.dst.PutReferrer(ctx, subject.Digest, ocispec.Descriptor{MediaType: m.MediaType, ArtifactType: m.ArtifactType, Annotations: m.Annotations}, encode(m))
}

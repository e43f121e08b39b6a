package push

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/signature/cosign"
	"github.com/ballast-dev/ballast/convert/signature/dsse"
	"github.com/ballast-dev/ballast/convert/signature/oms"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// emptyConfig is the config of an artifact that has none.
// https://github.com/opencontainers/image-spec/blob/v1.1.1/manifest.md#guidance-for-an-empty-descriptor
var emptyConfig = []byte("{}")

// sign attaches two signatures to the manifest that is about to be written: of the manifest, as cosign
// makes it, and of the files, as model-signing does. They come before the name, so that nobody finds the
// model there without them. The same key gives the same bytes: signing again adds nothing.
func (c *conversion) sign(ctx context.Context, p *plan, docs documents) error {
	subject := ocispec.Descriptor{MediaType: docs.mediaType, Digest: digest.FromBytes(docs.manifest), Size: int64(len(docs.manifest))}
	statements := []dsse.Statement{cosign.Statement(subject.Digest)}
	files, err := c.signed(p, docs)
	if err == nil {
		var s dsse.Statement
		if s, err = oms.Statement(c.dst.String(), files); err == nil {
			statements = append(statements, s)
		}
	}
	if err != nil {
		c.lose("a signature over the files (the manifest is signed): %v", err)
	}
	for _, s := range statements {
		if err := c.attach(ctx, subject, s); err != nil {
			return fmt.Errorf("signature: %w", err)
		}
	}
	return nil
}

// attach signs a statement and writes it as a referrer of a manifest.
// https://github.com/sigstore/cosign/blob/v3.0.2/specs/BUNDLE_SPEC.md
func (c *conversion) attach(ctx context.Context, subject ocispec.Descriptor, s dsse.Statement) error {
	bundle, err := dsse.Sign(c.o.Sign, s)
	if err != nil {
		return err
	}
	for _, b := range [][]byte{emptyConfig, bundle} {
		d := ocispec.Descriptor{Digest: digest.FromBytes(b), Size: int64(len(b))}
		if err := c.put(ctx, &layer{desc: d, open: opener(b)}); err != nil {
			return err
		}
	}
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: mediatype.OCIManifest, ArtifactType: mediatype.Bundle,
		Config:      ocispec.Descriptor{MediaType: mediatype.OCIEmpty, Digest: digest.FromBytes(emptyConfig), Size: int64(len(emptyConfig))},
		Layers:      []ocispec.Descriptor{{MediaType: mediatype.Bundle, Digest: digest.FromBytes(bundle), Size: int64(len(bundle))}},
		Subject:     &subject,
		Annotations: map[string]string{mediatype.BundleContentKey: "dsse-envelope", mediatype.BundlePredicateKey: s.PredicateType},
	}
	return c.dst.PutReferrer(ctx, subject.Digest, ocispec.Descriptor{MediaType: m.MediaType, ArtifactType: m.ArtifactType, Annotations: m.Annotations}, encode(m))
}

// signed returns the files that somebody sees who pulls what is written, sorted, all with digests.
func (c *conversion) signed(p *plan, docs documents) ([]filetable.File, error) {
	switch {
	case c.o.Form == FormBallast:
		t, err := filetable.Decode(docs.blobs[0])
		if err != nil {
			return nil, err
		}
		if len(t.Unpacks) > 0 {
			return nil, fmt.Errorf("files of archives have no digests before they are unpacked; --as %s has them", FormModelPack)
		}
		return slices.CompactFunc(slices.Clone(t.Seen()), func(a, b filetable.File) bool { return a.Path == b.Path }), nil
	case c.o.Form == FormImage || c.o.Form == FormCNAI || c.o.Tar:
		return nil, fmt.Errorf("files in tars have no digests")
	}
	key := dialectOf(c.o.Form).filepath
	var files []filetable.File
	for _, l := range p.layers {
		if t, err := mediatype.Parse(l.desc.MediaType); err == nil && t.Archive == filetable.ArchiveNone {
			files = append(files, filetable.File{Path: l.desc.Annotations[key], Type: filetable.TypeReg, Size: l.desc.Size, Digest: l.desc.Digest})
		}
	}
	slices.SortFunc(files, func(a, b filetable.File) int { return cmp.Compare(a.Path, b.Path) })
	return files, nil
}

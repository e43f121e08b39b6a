package remote

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A Manifest is a manifest or an index, byte for byte as served.
type Manifest struct {
	Bytes  []byte
	Digest digest.Digest // of Bytes

	// ContentType is what it was served as, without parameters; it is often wrong.
	ContentType string
}

// accept is what a registry may answer with. The registry of Ollama is asked as its own client
// does, so that it answers with the list of runners where there is one.
var (
	acceptAny = strings.Join([]string{
		mediatype.OCIManifest, mediatype.OCIIndex, mediatype.DockerManifest, mediatype.DockerManifestList,
		mediatype.ModelPackManifest, mediatype.CNAIManifest, "*/*",
	}, ", ")
	acceptOllama = mediatype.OllamaManifestList + ", " + mediatype.DockerManifest
)

// Resolve returns the manifest that ref names. With a digest and a tag, a registry that does
// not serve manifests by digest is asked for the tag, and must answer with the digest.
func (r *Repository) Resolve(ctx context.Context, ref Ref) (Manifest, error) {
	m, err := r.Manifest(ctx, ref.Object())
	if err == nil || ref.Digest == "" || ref.Tag == "" || !errdefs.IsNotFound(err) {
		return m, err
	}
	m, tagErr := r.Manifest(ctx, ref.Tag)
	if tagErr != nil {
		return Manifest{}, err
	}
	if err := verify.Bytes(ref.Digest, m.Bytes); err != nil {
		return Manifest{}, fmt.Errorf("%s: the tag is another manifest now, and the registry does not serve the digest: %w", ref, err)
	}
	return m, nil
}

// Manifest returns the manifest with the given tag or digest, by one GET, which is sent again a few
// times while the registry is in trouble. It is verified if asked for by digest. It returns errdefs.ErrInvalidArgument for a manifest larger than
// convert.MaxManifestSize or an answer that is none; the categories of other errors are
// those of store.Fetcher, and errdefs.ErrFailedPrecondition if the registry wants a newer
// client.
func (r *Repository) Manifest(ctx context.Context, object string) (Manifest, error) {
	ref, err := NewRef(r.ref.Host, r.ref.Repository, object)
	if err != nil {
		return Manifest{}, err
	}
	caps := docker.HostCapabilityPull
	if ref.Digest == "" {
		caps |= docker.HostCapabilityResolve
	}
	var m Manifest
	err = retry(ctx, lasting, func() error {
		return transfer.Foreign(ctx, r.each(ctx, caps, nil, func(e *endpoint) error {
			m, err = r.manifest(ctx, e, ref)
			return err
		}))
	})
	if err != nil {
		return Manifest{}, fmt.Errorf("manifest %s: %w", ref, err)
	}
	return m, nil
}

// lasting says that asking for a manifest again is of no use: the registry has answered, and what it
// answered is no sign of trouble that passes.
func lasting(err error) bool { return !errdefs.IsUnavailable(err) }

// manifest asks one host.
func (r *Repository) manifest(ctx context.Context, e *endpoint, ref Ref) (Manifest, error) {
	q := request{path: "manifests/" + ref.Object(), accept: acceptAny}
	if r.ollama() {
		q.accept = acceptOllama
	}
	resp, err := r.do(ctx, e, q)
	if err != nil {
		return Manifest{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return Manifest{}, fmt.Errorf("%s answered a part of the manifest: %w", e.Host, errdefs.ErrUnknown)
	}
	p, err := readManifest(ctx, resp)
	if err != nil {
		return Manifest{}, fmt.Errorf("%s: %w", e.Host, err)
	}
	if len(p) > convert.MaxManifestSize {
		return Manifest{}, fmt.Errorf("%s: more than %d bytes: %w", e.Host, convert.MaxManifestSize, errdefs.ErrInvalidArgument)
	}
	m := Manifest{Bytes: p, Digest: digest.FromBytes(p)}
	m.ContentType, _, _ = mime.ParseMediaType(resp.Header.Get("Content-Type")) // the body counts
	if t := bytes.TrimLeft(p, " \t\r\n"); len(t) == 0 || t[0] != '{' {
		return Manifest{}, fmt.Errorf("%s: the answer (%.100q) is not a manifest: %w", e.Host, m.ContentType, errdefs.ErrInvalidArgument)
	}
	want := ref.Digest
	if want == "" && !signed(p) {
		want, _ = verify.ParseDigest(resp.Header.Get("Docker-Content-Digest")) // can be absent
	}
	if want != "" {
		if err := verify.Bytes(want, p); err != nil {
			return Manifest{}, fmt.Errorf("%s: %w", e.Host, err)
		}
	}
	return m, nil
}

// readManifest reads an answer, up to a byte more than a manifest can have. A large one is read when there
// is memory for it (convert.MakeRoom), and has manifestTime for the rest: it holds that memory.
func readManifest(ctx context.Context, resp *response) ([]byte, error) {
	read := func(b *bytes.Buffer, n int64) error {
		if _, err := io.Copy(b, io.LimitReader(resp.Body, n)); err != nil {
			return fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
		}
		return nil
	}
	var b bytes.Buffer
	if err := read(&b, convert.SmallDocument); err != nil || b.Len() < convert.SmallDocument {
		return b.Bytes(), err
	}
	size := resp.ContentLength
	if size < 0 || size > convert.MaxManifestSize {
		size = convert.MaxManifestSize
	}
	if err := convert.MakeRoom(ctx, size); err != nil {
		return nil, err
	}
	late := time.AfterFunc(manifestTime, func() { resp.Body.Close() })
	defer late.Stop()
	b.Grow(int(size) - b.Len() + bytes.MinRead)
	err := read(&b, convert.MaxManifestSize+1-convert.SmallDocument)
	return b.Bytes(), err
}

// manifestTime is how long the rest of a large manifest can take: 8 MiB at 140 KiB/s.
const manifestTime = time.Minute

// signed reports whether p can be a signed manifest of schema 1, whose digest leaves the
// signatures out.
func signed(p []byte) bool { return bytes.Contains(p, []byte(`"signatures"`)) }

package remote

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A Manifest is a manifest or an index, byte for byte as served.
type Manifest struct {
	Bytes  []byte
	Digest digest.Digest // of Bytes

	// ContentType is the Content-Type header without parameters; it is often wrong.
	ContentType string

	// Unconfirmed is true if a mirror gave the manifest and the registry did not answer whether it would, so that
	// nobody has said who may have it.
	Unconfirmed bool
}

// acceptAny is the Accept header for a registry without a Manner.
var acceptAny = strings.Join([]string{
	mediatype.OCIManifest, mediatype.OCIIndex, mediatype.DockerManifest, mediatype.DockerManifestList,
	mediatype.ModelPackManifest, mediatype.CNAIManifest, "*/*",
}, ", ")

// Resolve returns the manifest that ref names. If ref has a digest and a tag, and the registry does
// not serve the manifest by digest, Resolve requests the tag and verifies the digest.
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
		return Manifest{}, fmt.Errorf("%s: the registry does not serve the digest, and the tag now names another manifest: %w", ref, err)
	}
	return m, nil
}

// Manifest returns the manifest with a tag or digest. It sends one GET, or one HEAD for what has not changed
// since it was read, and repeats it a few times while the registry is unavailable, and as WithPatience says. A
// manifest requested by digest is verified. It returns errdefs.ErrInvalidArgument for a manifest larger than
// convert.MaxManifestSize or a response that is not a manifest, errdefs.ErrFailedPrecondition if the registry
// requires a newer client, and otherwise the categories of transfer.Fetcher.
func (r *Repository) Manifest(ctx context.Context, object string) (Manifest, error) {
	ref, err := NewRef(r.ref.Host, r.ref.Repository, object)
	if err != nil {
		return Manifest{}, err
	}
	caps := docker.HostCapabilityPull
	if ref.Digest == "" {
		caps |= docker.HostCapabilityResolve
	}
	for start := time.Now(); ; {
		var m Manifest
		t := r.forDocuments(ctx, has(caps))
		for t.Next(ctx) {
			m, err = r.manifest(ctx, asked(t), ref)
			t.Done(ctx, err)
		}
		if err = r.failure(t, ref.String()); err != nil {
			if err = r.wait(ctx, start, err); err == nil {
				continue
			}
		}
		return m, err
	}
}

// manifest asks one host.
func (r *Repository) manifest(ctx context.Context, e *endpoint, ref Ref) (Manifest, error) {
	q := request{path: "manifests/" + ref.Object(), accept: cmp.Or(r.manner().Accept, acceptAny)}
	m, ok, headless, err := r.unchanged(ctx, e, q, ref)
	if ok || err != nil {
		return m, err
	}
	if m, err = r.get(ctx, e, q, ref); err != nil {
		return m, err
	}
	if headless {
		e.headless.Store(true)
	}
	r.client.seen.put(ref, m)
	return m, nil
}

// get asks one host for a manifest by GET.
func (r *Repository) get(ctx context.Context, e *endpoint, q request, ref Ref) (Manifest, error) {
	resp, err := r.document(ctx, e, q)
	if errdefs.IsNotFound(err) && !e.dialect { // a dialect says what is missing
		return Manifest{}, r.missing(e, ref)
	}
	if err != nil {
		return Manifest{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return Manifest{}, fmt.Errorf("%s returned partial content for a manifest: %w", e.Host, errdefs.ErrUnknown)
	}
	p, err := readManifest(ctx, resp)
	if err != nil {
		return Manifest{}, fmt.Errorf("%s: %w", e.Host, err)
	}
	if len(p) > convert.MaxManifestSize {
		return Manifest{}, fmt.Errorf("%s: more than %d bytes: %w", e.Host, convert.MaxManifestSize, errdefs.ErrInvalidArgument)
	}
	m := Manifest{Bytes: p, Digest: digest.FromBytes(p)}
	m.ContentType, _, _ = mime.ParseMediaType(resp.Header.Get("Content-Type")) // errors are ignored: the body counts
	if t := bytes.TrimLeft(p, " \t\r\n"); len(t) == 0 || t[0] != '{' {
		return Manifest{}, fmt.Errorf("%s: the answer (%.100q) is not a manifest; is it a registry?: %w", e.Host, m.ContentType, errdefs.ErrInvalidArgument)
	}
	want := ref.Digest
	if want == "" && !signed(p) {
		want, _ = verify.ParseDigest(resp.Header.Get("Docker-Content-Digest")) // may be absent
	}
	if want != "" {
		if err := verify.Bytes(want, p); err != nil {
			return Manifest{}, fmt.Errorf("%s: %w", e.Host, err)
		}
	}
	m.Unconfirmed, err = r.unconfirmed(ctx, e, m.Digest)
	return m, err
}

// unconfirmed asks the registry whether it gives the manifest that e gave: a mirror may give everybody what it got
// with the credentials of somebody. The error is that of a registry that does not; unconfirmed is true if it does
// not answer.
func (r *Repository) unconfirmed(ctx context.Context, e *endpoint, d digest.Digest) (unconfirmed bool, err error) {
	origin := r.origin()
	if e.server || origin == nil {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, confirmTime)
	defer cancel()
	switch err := r.hasManifest(ctx, origin, d); {
	case err == nil:
		return false, nil
	case errdefs.IsNotFound(err), errdefs.IsUnauthorized(err), errdefs.IsPermissionDenied(err):
		return false, fmt.Errorf("%s gave a manifest: %w", e.Host, err)
	}
	return true, nil
}

// Gives reports whether the registry itself gives a manifest: never with Options.MirrorOnly. It asks once.
func (r *Repository) Gives(ctx context.Context, d digest.Digest) bool {
	origin := r.origin()
	return origin != nil && r.hasManifest(ctx, origin, d) == nil
}

// hasManifest returns the error of a host that does not give a manifest.
func (r *Repository) hasManifest(ctx context.Context, e *endpoint, d digest.Digest) error {
	resp, err := r.do(ctx, e, request{path: "manifests/" + d.String(), accept: cmp.Or(r.manner().Accept, acceptAny), head: !e.dialect}) // it answers GET alone
	if err == nil {
		err = resp.Body.Close()
	}
	return err
}

// LatestHint follows the error for a reference with the tag that nobody may have written.
const LatestHint = `; a reference without a tag has the tag "latest"`

// missing returns the error for a manifest that a host does not have.
func (r *Repository) missing(e *endpoint, ref Ref) error {
	text := e.Host + " has no such repository or tag"
	switch {
	case ref.Digest != "":
		text = e.Host + " has no such repository or digest"
	case ref.Tag == "latest":
		text += LatestHint
	case strings.ToLower(ref.Repository) != ref.Repository:
		text += "; most registries have names in lower case only"
	}
	return as(errdefs.ErrNotFound, text)
}

// readManifest reads a response, up to one byte more than the largest manifest. It waits for memory
// for a large one (convert.MakeRoom) and then limits the time to manifestTime, because it holds
// that memory.
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

// document is do for a document, whose body is read without its content encoding.
func (r *Repository) document(ctx context.Context, e *endpoint, q request) (*response, error) {
	resp, err := r.do(ctx, e, q)
	if err != nil {
		return nil, err
	}
	if err := decode(resp); err != nil {
		resp.Body.Close()
		return nil, fmt.Errorf("%s: %w", e.Host, err)
	}
	return resp, nil
}

// decode lets the body of a response be read without its content encoding, which some proxies use although the request
// excludes it.
func decode(resp *response) error {
	switch coding := strings.ToLower(resp.Header.Get("Content-Encoding")); coding {
	case "", "identity":
		return nil
	case "gzip", "x-gzip":
		z, err := gzip.NewReader(resp.Body)
		if err != nil {
			return fmt.Errorf("an answer with content encoding gzip: %w: %w", err, errdefs.ErrUnavailable)
		}
		resp.Body, resp.ContentLength = struct {
			io.Reader
			io.Closer
		}{z, resp.Body}, -1
		return nil
	default:
		return fmt.Errorf("an answer with content encoding %.20q, which was not asked for: %w", coding, errdefs.ErrNotImplemented)
	}
}

// manifestTime limits the time to read the rest of a large manifest: 8 MiB at 140 KiB/s.
const manifestTime = time.Minute

// signed reports whether p can be a signed manifest of schema 1, whose digest excludes the
// signatures.
func signed(p []byte) bool { return bytes.Contains(p, []byte(`"signatures"`)) }

package push

import (
	"cmp"
	"context"
	"crypto"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/ballast-dev/ballast/convert/layout"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A Form is what a model is written as.
type Form string

// The forms; see the package documentation.
const (
	FormBallast   Form = "ballast"
	FormModelPack Form = "modelpack"
	FormCNAI      Form = "cnai"
	FormImage     Form = "image"
)

// Forms are all forms.
func Forms() []string {
	return []string{string(FormBallast), string(FormModelPack), string(FormCNAI), string(FormImage)}
}

// ParseForm returns the Form of its name, or errdefs.ErrInvalidArgument.
func ParseForm(s string) (Form, error) {
	switch f := Form(s); f {
	case FormBallast, FormModelPack, FormCNAI, FormImage:
		return f, nil
	}
	return "", fmt.Errorf("form %q is none of %s: %w", s, strings.Join(Forms(), ", "), errdefs.ErrInvalidArgument)
}

// Options are the settings of Convert. The zero value writes FormBallast.
type Options struct {
	Form Form

	// Tar makes a tar of each file; FormModelPack and FormCNAI only.
	Tar bool

	// NoChunks leaves the digests of chunks away; FormBallast only.
	NoChunks bool

	// Compress compresses the files in chunks; FormBallast, and with CompressChunked FormImage.
	Compress Compression

	// Sign, if not nil, signs what is written: the manifest as cosign does and, where their digests are
	// known, the files as model-signing does. Both are referrers of the manifest.
	Sign crypto.Signer

	// Referrer writes what a node makes of the model into the repository that the model is in, as a referrer
	// of its manifest; FormBallast with NoChunks only. All blobs of the model have to be in the target.
	Referrer bool

	// DryRun sends nothing, and reads no more than is needed to say what would be sent.
	DryRun bool

	// TempDir is where the temporary store is made. Empty means the system's.
	TempDir string

	// Parallel is the number of blobs that are sent at the same time. Zero means 4.
	Parallel int

	// Progress, if not nil, is called about five times a second and once at the end with all that
	// is brought or sent, from one goroutine at a time.
	Progress func([]store.Progress)

	// Log is where the temporary store reports; nil discards.
	Log *slog.Logger
}

// A Target is where a model is written to. Its methods can be called at the same time, and give
// the errors of store.Fetcher.
type Target interface {
	// String returns its name.
	String() string

	// Has reports whether a blob is there.
	Has(ctx context.Context, d digest.Digest, size int64) (bool, error)

	// Mount takes a blob over from another repository of the same registry, if it can.
	Mount(ctx context.Context, d digest.Digest, host, repository string) (bool, error)

	// Put writes a blob. open gives its bytes, verified, and is called again for another try.
	Put(ctx context.Context, d digest.Digest, size int64, open Opener) error

	// PutStream writes bytes whose digest is not known before, and returns it.
	PutStream(ctx context.Context, size int64, open Opener) (digest.Digest, error)

	// PutManifest writes the manifest, under the name of the target.
	PutManifest(ctx context.Context, mediaType string, p []byte) error

	// PutReferrer writes a manifest or index that refers to another, its subject, without a name. The
	// subject need not be there yet. The digest and size of desc follow from the bytes.
	PutReferrer(ctx context.Context, subject digest.Digest, desc ocispec.Descriptor, p []byte) error
}

var _ Target = (*layout.Layout)(nil)

// An Opener opens bytes from the first on.
type Opener = func(ctx context.Context) (io.ReadCloser, error)

// A Result says what Convert did, or would do.
type Result struct {
	Form      Form          `json:"as"`
	Manifest  []byte        `json:"-"`
	MediaType string        `json:"mediaType,omitempty"`
	Digest    digest.Digest `json:"digest,omitempty"` // of Manifest; empty if it is not known yet
	Referrer  digest.Digest `json:"referrer,omitempty"`
	Layers    []Layer       `json:"layers"`
	Size      int64         `json:"size"` // bytes of all layers, each once
	Sent      int64         `json:"sent"` // bytes of layers that the target did not have
	Present   int64         `json:"present"`
	Mounted   int64         `json:"mounted"`
	Losses    []string      `json:"losses,omitempty"`
}

// A Layer is a layer of a Result.
type Layer struct {
	Name      string        `json:"name"`
	MediaType string        `json:"mediaType"`
	Digest    digest.Digest `json:"digest,omitempty"` // empty if it is not known yet
	Size      int64         `json:"size"`             // bytes; -1 if it is not known yet
	State     string        `json:"state"`            // see the constants
}

// The states of a Layer.
const (
	StatePlanned   = "planned" // a dry run: would be sent
	StateUploaded  = "uploaded"
	StatePresent   = "present" // the target had it
	StateMounted   = "mounted" // it was in another repository of the registry
	stateWaiting   = "waiting"
	stateUploading = "uploading"
	stateReading   = "reading" // for digests of chunks; the target has it
	stateComplete  = "complete"
)

// A conversion is one run of Convert.
type conversion struct {
	src  *resolve.Source
	dst  Target
	o    Options
	work *workspace // nil until it is needed

	losses []string
}

// Convert writes a model to a target. The manifest comes last: if there is an error, nothing new
// has the name of the target. It returns *verify.Error if the source has wrong bytes,
// errdefs.ErrPermissionDenied or errdefs.ErrUnauthenticated if one of the two sides refuses,
// and errdefs.ErrResourceExhausted if there is no space for what has to be unpacked.
func Convert(ctx context.Context, src *resolve.Source, dst Target, o Options) (res *Result, err error) {
	o.Form = cmp.Or(o.Form, FormBallast)
	o.Parallel = cmp.Or(o.Parallel, 4)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Progress == nil {
		o.Progress = func([]store.Progress) {}
	}
	if o.Tar && o.Form != FormModelPack && o.Form != FormCNAI {
		return nil, fmt.Errorf("tars are for %s and %s: %w", FormModelPack, FormCNAI, errdefs.ErrInvalidArgument)
	}
	if o.Referrer && (o.Form != FormBallast || !o.NoChunks || verify.Bytes(src.Model.Table.Origin.Digest, src.Model.Documents.Manifest) != nil) {
		return nil, fmt.Errorf("only what a node makes of a manifest can refer to that: %w", errdefs.ErrInvalidArgument)
	}
	if err := o.checkCompress(); err != nil {
		return nil, err
	}
	c := &conversion{src: src, dst: dst, o: o, losses: src.Losses}
	defer func() {
		if closeErr := c.work.Close(); closeErr != nil && err == nil {
			err = fmt.Errorf("temporary store: %w", closeErr)
		}
	}()
	p, err := c.plan(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", src.Name, err)
	}
	return c.run(ctx, p)
}

// checkCompress returns errdefs.ErrInvalidArgument for a compression that the form does not have.
func (o *Options) checkCompress() error {
	switch {
	case o.Compress == CompressNone, o.Form == FormBallast && !o.NoChunks, o.Form == FormImage && o.Compress == CompressChunked:
		return nil
	}
	return fmt.Errorf("%s is for %s with digests of chunks, and %s for %s: %w", o.Compress, FormBallast, CompressChunked, FormImage, errdefs.ErrInvalidArgument)
}

// A plan is what is written: layers, and documents that follow from them.
type plan struct {
	layers []*layer

	// documents returns the manifest and the blobs of documents that it names, once all
	// layers have their digests.
	documents func() (documents, error)
}

// documents are what comes after the layers.
type documents struct {
	manifest  []byte
	mediaType string
	blobs     [][]byte
}

func (c *conversion) plan(ctx context.Context) (*plan, error) {
	switch c.o.Form {
	case FormBallast:
		if c.o.Compress != CompressNone {
			return c.planCompressed(ctx)
		}
		return c.planBallast(ctx)
	case FormImage:
		return c.planImage(ctx)
	}
	return c.planModelPack(ctx)
}

// lose notes what has no place in the form.
func (c *conversion) lose(format string, args ...any) {
	c.losses = append(c.losses, fmt.Sprintf(format, args...))
}

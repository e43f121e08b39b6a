package export

import (
	"cmp"
	"context"
	"crypto"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/convert/signature/dsse"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A Form is the form in which a model is written.
type Form string

// The forms; see the package documentation.
const (
	FormBallast   Form = "ballast"
	FormModelPack Form = "modelpack"
	FormCNAI      Form = "cnai"
	FormImage     Form = "image"
)

// Forms returns all forms.
func Forms() []string {
	return []string{string(FormBallast), string(FormModelPack), string(FormCNAI), string(FormImage)}
}

// ParseForm returns the Form with a name, or errdefs.ErrInvalidArgument.
func ParseForm(s string) (Form, error) {
	if slices.Contains(Forms(), s) {
		return Form(s), nil
	}
	return "", fmt.Errorf("form %q is not one of %s: %w", s, strings.Join(Forms(), ", "), errdefs.ErrInvalidArgument)
}

// A Compression is the compression of the blobs of FormBallast, or of the layers of FormImage,
// which allows reads of single chunks.
type Compression string

// The compressions. Other tools see ordinary zstd, and tars in zstd.
const (
	CompressNone     Compression = ""
	CompressSeekable Compression = "zstd-seekable" // each file is a blob in the zstd seekable format
	CompressChunked  Compression = "zstd-chunked"  // tars in zstd:chunked; Podman also reads those of FormImage
)

// Compressions returns all compressions.
func Compressions() []string { return []string{string(CompressSeekable), string(CompressChunked)} }

// ParseCompression returns the Compression with a name, or errdefs.ErrInvalidArgument.
func ParseCompression(s string) (Compression, error) {
	if s == "" || slices.Contains(Compressions(), s) {
		return Compression(s), nil
	}
	return "", fmt.Errorf("compression %q is not one of %s: %w", s, strings.Join(Compressions(), ", "), errdefs.ErrInvalidArgument)
}

// A Signer returns a bundle for each statement. by is the identity that a certificate names, or "".
type Signer func(ctx context.Context, statements []dsse.Statement) (bundles [][]byte, by string, err error)

// WithKey returns a Signer with a private key. The same key gives the same bundles.
func WithKey(key crypto.Signer) Signer {
	return func(_ context.Context, statements []dsse.Statement) (bundles [][]byte, by string, err error) {
		for _, s := range statements {
			b, err := dsse.Sign(key, s)
			if err != nil {
				return nil, "", err
			}
			bundles = append(bundles, b)
		}
		return bundles, "", nil
	}
}

// Options configure Run. The zero value writes FormBallast.
type Options struct {
	Form Form

	// Tar puts each file into a tar; FormModelPack only.
	Tar bool

	// NoChunks leaves out the digests of chunks: the result is what nodes make; FormBallast only.
	NoChunks bool

	// Compress compresses the files in chunks; FormBallast, and with CompressChunked FormImage.
	Compress Compression

	// Sign, if not nil, signs the result: the manifest as cosign does and, if their digests are
	// known, the files as model-signing does. Both signatures are referrers of the manifest.
	Sign Signer

	// Referrer writes the image that a node makes of the model into the repository of the model, as
	// a referrer of its manifest; FormBallast with NoChunks only. The target must have all blobs of
	// the model.
	Referrer bool

	// Annotations are added to the manifest; not with FormBallast: nodes build that manifest from the table, without
	// others.
	Annotations map[string]string

	// Force replaces what has the name of the target, whatever it is.
	Force bool

	// Prefix, if not nil, replaces filetable.Origin.Prefix of the model. The files of a form without file table have it
	// in their paths.
	Prefix *string

	// DryRun sends nothing, and reads only what is needed to report what would be sent.
	DryRun bool

	// TempDir is the parent directory of the temporary store. Empty means the system's.
	TempDir string

	// Parallel is the number of simultaneous blob transfers. Zero means 4.
	Parallel int

	// Progress, if not nil, is called about five times a second and once at the end with the
	// progress of all transfers, from one goroutine at a time.
	Progress func([]store.Progress)

	// Log is the logger of the temporary store; nil discards.
	Log *slog.Logger
}

// A Result describes what Run did, or would do.
type Result struct {
	Form      Form          `json:"as"`
	Manifest  []byte        `json:"-"`
	MediaType string        `json:"mediaType,omitempty"`
	Digest    digest.Digest `json:"digest,omitempty"` // of Manifest; empty if unknown
	Referrer  digest.Digest `json:"referrer,omitempty"`
	Layers    []Layer       `json:"layers"`
	Size      int64         `json:"size"` // size of all distinct layers in bytes
	Sent      int64         `json:"sent"` // bytes of layers that the target did not have
	Present   int64         `json:"present"`
	Mounted   int64         `json:"mounted"`
	Losses    []string      `json:"losses,omitempty"`
	SignedBy  string        `json:"signedBy,omitempty"` // the identity of a keyless signature
	Problems  []string      `json:"problems,omitempty"` // what is wrong with the files
}

// A Layer is a layer of a Result.
type Layer struct {
	Name      string        `json:"name"`
	MediaType string        `json:"mediaType"`
	Digest    digest.Digest `json:"digest,omitempty"` // empty if unknown
	Size      int64         `json:"size"`             // bytes; -1 if unknown
	State     string        `json:"state"`            // see the constants
}

// The states of a Layer.
const (
	StatePlanned   = "planned" // in a dry run: would be sent
	StateUploaded  = "uploaded"
	StatePresent   = "present" // the target already had it
	StateMounted   = "mounted" // mounted from another repository of the registry
	stateWaiting   = "waiting"
	stateUploading = "uploading"
	stateReading   = "reading" // read for chunk digests; the target has it
	stateComplete  = "complete"
)

// Check returns errdefs.ErrInvalidArgument for an invalid combination of settings.
func (o Options) Check() error {
	form, err := ParseForm(string(cmp.Or(o.Form, FormBallast)))
	if err != nil {
		return err
	}
	if _, err := ParseCompression(string(o.Compress)); err != nil {
		return err
	}
	var text string
	switch {
	case o.Tar && form != FormModelPack:
		text = fmt.Sprintf("only the form %s has a choice of raw layers or tars", FormModelPack)
	case o.NoChunks && form != FormBallast:
		text = fmt.Sprintf("only the form %s has digests of chunks to leave out", FormBallast)
	case o.Compress != CompressNone && (form != FormBallast || o.NoChunks) && (form != FormImage || o.Compress != CompressChunked):
		text = fmt.Sprintf("compression is for %s with digests of chunks, and %s for %s", FormBallast, CompressChunked, FormImage)
	case len(o.Annotations) > 0 && form == FormBallast:
		text = fmt.Sprintf("annotations are for the other forms: nodes build the manifest of %s themselves", FormBallast)
	case o.Referrer && (form != FormBallast || !o.NoChunks):
		text = fmt.Sprintf("a referrer is %s without digests of chunks: it is what a node makes", FormBallast)
	default:
		return nil
	}
	return fmt.Errorf("%s: %w", text, errdefs.ErrInvalidArgument)
}

// Run writes a model to a target, which may be nil in a dry run: then it is empty. The manifest is written last:
// after an error, nothing new has the name of the target. It returns errdefs.ErrAlreadyExists if the name has
// something that Run does not replace, *verify.Error if the source has wrong bytes, errdefs.ErrPermissionDenied or
// errdefs.ErrUnauthenticated if the source or the target refuses access, errdefs.ErrInvalidArgument if Check does,
// errdefs.ErrResourceExhausted if there is no space for unpacking, and errdefs.ErrFailedPrecondition if a file is a
// pointer of Git LFS.
func Run(ctx context.Context, src *resolve.Source, dst Target, o Options) (res *Result, err error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	o.Form = cmp.Or(o.Form, FormBallast)
	o.Parallel = cmp.Or(o.Parallel, 4)
	if o.Referrer && verify.Bytes(src.Model.Table.Origin.Digest, src.Model.Documents.Manifest) != nil {
		return nil, fmt.Errorf("only what a node makes of a manifest can refer to that: %w", errdefs.ErrInvalidArgument)
	}
	if err := NoPointers(src); err != nil {
		return nil, err
	}
	if o.Prefix != nil {
		src.Place(*o.Prefix)
	}
	j := newJob(src, o)
	defer func() { err = errors.Join(err, j.close()) }()
	w := &writer{j, dst}
	if err := w.replaceable(ctx, ""); err != nil {
		return nil, err
	}
	p, err := planners[o.Form](j, ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", src.Name, err)
	}
	if res, err = w.run(ctx, p); err != nil {
		return nil, err
	}
	res.Problems = distinct(j.problems)
	return res, nil
}

// distinct returns texts once, sorted.
func distinct(texts []string) []string { return slices.Compact(slices.Sorted(slices.Values(texts))) }

// Files calls fn with the verified files of a model, sorted by path: symbolic links are files with the
// content of their targets. Files in archives are unpacked before, and removed afterwards. It
// returns what is left out and what is wrong with the files, and the errors of Run and fn.
func Files(ctx context.Context, src *resolve.Source, o Options, fn func([]format.File) error) (losses, problems []string, err error) {
	if err := NoPointers(src); err != nil {
		return nil, nil, err
	}
	j := newJob(src, o)
	defer func() { err = errors.Join(err, j.close()) }()
	all, err := j.files(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", src.Name, err)
	}
	j.found(describe(ctx, all).Problems)
	var list []format.File
	for _, f := range withoutFullDirs(j.withoutLinks(all)) {
		if f.Type != filetable.TypeReg {
			j.lose("directory %q, which is empty", f.Path)
			continue
		}
		list = append(list, format.File{Path: f.Path, Size: f.Size, Digest: f.Digest, Open: f.open.alone})
	}
	return j.losses, distinct(j.problems), fn(list)
}

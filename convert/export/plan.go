package export

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync/atomic"

	"github.com/ballast-dev/ballast/convert/headers"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A plan describes what is written.
type plan struct {
	items []*item // in the order of the layers

	// documents returns the documents written after the items. It is called with all items, in the
	// order of the plan, when their digests are known.
	documents func([]*item) (documents, error)
}

// An item is a blob of a plan. It is written by one goroutine.
type item struct {
	name string             // of its file, for messages
	desc ocispec.Descriptor // the digest is empty and the size -1 until they are known

	fromBlob bool    // a blob of the source, which can be mounted
	open     content // nil if pack is not

	// watched, if not nil, has the files whose chunks are computed, even if the target has the
	// blob.
	watched *ranges

	// pack, if not nil, makes the bytes, and adds the number of bytes read, of total, to n.
	pack  func(ctx context.Context, n *atomic.Int64) (*packed, error)
	total int64

	// The writer sets these fields.
	first  *item    // an earlier item with the same digest, which is sent instead
	seen   *passage // of the last read; nil if the item is not watched
	packed *packed  // the result of pack
	done   atomic.Int64
	made   atomic.Int64 // bytes that pack has made, for progress; 0 before
	state  atomic.Value // string
}

// setState sets the state of an item.
func (it *item) setState(state string) { it.state.Store(state) }

// stateOf returns the state of an item.
func (it *item) stateOf() string {
	if it.first != nil {
		return it.first.stateOf()
	}
	s, _ := it.state.Load().(string)
	return s
}

// read opens the bytes of the item, passes them to the passage and counts them.
func (it *item) read(ctx context.Context) (io.ReadCloser, error) {
	it.seen = it.watched.pass()
	it.done.Store(0)
	return it.open.counted(&it.done)(ctx, it.seen)
}

// bytes returns the size for progress.
func (it *item) bytes() int64 {
	if it.pack != nil {
		return cmp.Or(it.made.Load(), it.total)
	}
	return it.desc.Size
}

// key identifies an item, even before its digest is known.
func (it *item) key() digest.Digest {
	if it.fromBlob {
		return it.desc.Digest
	}
	return digest.FromString(it.name)
}

// documents are written after the layers.
type documents struct {
	manifest []byte
	blobs    [][]byte

	// files returns the files in the pulled model, sorted, all with digests; or why they are
	// unknown.
	files func() ([]filetable.File, error)
}

func (d *documents) desc() ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediatype.OCIManifest, Digest: digest.FromBytes(d.manifest), Size: int64(len(d.manifest))}
}

// planners make the plan of each form.
var planners = map[Form]func(*job, context.Context) (*plan, error){
	FormBallast:   (*job).planBallast,
	FormModelPack: (*job).planModelPack,
	FormCNAI:      (*job).planCNAI,
	FormImage:     (*job).planImage,
}

// A job is the shared state of planners: the source, and what has been unpacked of it.
type job struct {
	src    *resolve.Source
	o      Options
	dir    string       // of the store; empty until needed
	store  *store.Store // nil until needed
	losses []string

	problems []string // of the files
}

func newJob(src *resolve.Source, o Options) *job {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Progress == nil {
		o.Progress = func([]store.Progress) {}
	}
	j := &job{src: src, o: o, losses: slices.Clone(src.Losses), problems: slices.Clone(src.Problems)}
	var paths []string
	if t := &src.Model.Table; len(t.Unpacks) == 0 {
		for _, f := range t.Files {
			paths = append(paths, f.Path)
		}
	}
	j.found(headers.Missing(paths))
	return j
}

// found records what is wrong with the files.
func (j *job) found(problems []headers.Problem) {
	for _, p := range problems {
		j.problems = append(j.problems, p.String())
	}
}

// NoPointers returns errdefs.ErrFailedPrecondition for files that have only the address of their content. It compares
// paths, so a model whose files get others is checked before.
func NoPointers(src *resolve.Source) error {
	for _, f := range src.Model.Table.Files {
		if slices.Contains(src.Pointers, f.Path) {
			return fmt.Errorf("%s: %q is a pointer of Git LFS, not the file: run \"git lfs pull\", or leave it out with --exclude: %w",
				src.Name, f.Path, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// lose records a fact that the form has no place for.
func (j *job) lose(format string, args ...any) {
	j.losses = append(j.losses, fmt.Sprintf(format, args...))
}

// hidden returns, for a dry run, the archives whose files are unknown until they are unpacked.
func (j *job) hidden() (items []*item) {
	if !j.o.DryRun {
		return nil
	}
	names := blobNames(j.src.Model)
	for _, u := range j.src.Model.Table.Unpacks {
		items = append(items, &item{name: names[u.Blob] + " (is unpacked)", desc: ocispec.Descriptor{MediaType: mediatype.OCILayer, Size: -1}})
	}
	return items
}

// A content opens verified bytes. If seen is not nil, it receives the bytes too.
type content func(ctx context.Context, seen *passage) (io.ReadCloser, error)

// alone opens the bytes without a passage.
func (c content) alone(ctx context.Context) (io.ReadCloser, error) { return c(ctx, nil) }

// counted returns the content, with the bytes read added to n.
func (c content) counted(n *atomic.Int64) content {
	return func(ctx context.Context, seen *passage) (io.ReadCloser, error) {
		r, err := c(ctx, seen)
		if err != nil {
			return nil, err
		}
		return reading(&counter{r, n}, r), nil
	}
}

// contentOf returns the content of an Opener.
func contentOf(open Opener) content {
	return func(ctx context.Context, seen *passage) (io.ReadCloser, error) {
		r, err := open(ctx)
		if err != nil || seen == nil {
			return r, err
		}
		return reading(io.TeeReader(r, seen), r), nil
	}
}

// reading returns a ReadCloser that reads r and closes c.
func reading(r io.Reader, c io.Closer) io.ReadCloser {
	return struct {
		io.Reader
		io.Closer
	}{r, c}
}

type counter struct {
	r io.Reader
	n *atomic.Int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// An untilDone reader reads a local file until ctx ends.
type untilDone struct {
	ctx context.Context // of the caller of an Opener; an io.Reader has no context parameter
	r   io.Reader
}

func (u *untilDone) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.r.Read(p)
}

// encode returns the JSON of a value whose encoding cannot fail.
func encode(v any) []byte {
	p, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("export: internal error: %v", err))
	}
	return p
}

package differ

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/snapshotter"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Options are what a Differ works with. Only Check, Mode, Background and Log may be nil.
type Options struct {
	// Content is containerd's content store.
	Content content.InfoReaderProvider

	// Plain is containerd's diff service, which applies ordinary layers.
	Plain diff.Applier

	// Snapshotter made the snapshots that models are shown in.
	Snapshotter *snapshotter.Snapshotter

	// Store keeps the bytes of the models.
	Store *store.Store

	// Upstream returns where to fetch the blobs of a table from that is pulled from
	// repositories, in order. These can be none. The names are recorded for the snapshot.
	Upstream func(ctx context.Context, table digest.Digest, from []Repository) []transfer.Source

	// Check says whether the model of a table may be shown that was got from repositories; none if
	// nobody knows. If it is pending, it is asked again when the model is complete. Nil: any may.
	Check func(ctx context.Context, table digest.Digest, from []Repository, complete bool) (pending bool, err error)

	// Mode says when a model is shown that was got from these repositories. Nil means
	// Complete.
	Mode func(from []Repository) Mode

	// Unverified lets files be read before any digest over them has matched, if they come
	// without digests of chunks.
	Unverified bool

	// Background brings the rest of a model that is shown already, until it is there or
	// nothing refers to it any more. It returns at once. view is where it is shown, and sources
	// are what Apply would use.
	// It is needed for modes other than Complete.
	Background func(view string, table digest.Digest, sources []transfer.Source)

	// Log is where the differ reports; nil discards.
	Log *slog.Logger
}

// A Mode says when a model is shown.
type Mode string

// The modes. Where the kernel or the source can not do what a mode asks for, it is Complete.
const (
	Complete Mode = "complete" // when every file is there and verified
	Lazy     Mode = "lazy"     // when name, size and digest of every file are known
	Auto     Mode = "auto"     // as Lazy if the large files have digests of chunks, else as Complete
)

// Differ implements diff.Applier and diff.Comparer.
type Differ struct {
	o     Options
	again string // value of annotationAgain: ours alone
}

var (
	_ diff.Applier  = (*Differ)(nil)
	_ diff.Comparer = (*Differ)(nil)
)

// New returns a Differ.
func New(o Options) *Differ {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Check == nil {
		o.Check = func(context.Context, digest.Digest, []Repository, bool) (bool, error) { return false, nil }
	}
	return &Differ{o: o, again: rand.Text()}
}

// Compare returns errdefs.ErrNotImplemented: containerd's own differ does it.
func (d *Differ) Compare(context.Context, []mount.Mount, []mount.Mount, ...diff.Opt) (ocispec.Descriptor, error) {
	return ocispec.Descriptor{}, fmt.Errorf("compare: %w", errdefs.ErrNotImplemented)
}

// Apply applies a layer to the mounts of an active snapshot, and returns a descriptor with
// its diffID. For a table layer it returns when the model is complete, or can be read before (Options.Mode), and
// may be shown (Options.Check).
//
// It returns errdefs.ErrFailedPrecondition for a layer of a model on the mounts of another
// snapshotter, and errdefs.ErrNotImplemented for an ordinary layer on mounts that only
// containerd's mount manager understands, or that comes from here (see applyPlain).
func (d *Differ) Apply(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount, opts ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	if ns, ok := namespaces.Namespace(ctx); ok {
		ctx = namespaces.WithNamespace(ctx, ns)
	}
	var f func(context.Context, ocispec.Descriptor, []mount.Mount) (digest.Digest, error)
	switch desc.MediaType {
	case filetable.MediaTypeTableLayer:
		f = d.applyTable
	case filetable.MediaTypeBlobLayer:
		f = d.applyBlob
	default:
		return d.applyPlain(ctx, desc, mounts, opts)
	}
	if _, err := verify.ParseDigest(desc.Digest.String()); err != nil {
		return ocispec.Descriptor{}, err
	}
	var config diff.ApplyConfig
	for _, o := range opts {
		if err := o(ctx, desc, &config); err != nil {
			return ocispec.Descriptor{}, err
		}
	}
	if config.Progress == nil {
		config.Progress = func(int64) {}
	}
	config.Progress(0)
	diffID, err := f(ctx, desc, mounts)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	config.Progress(desc.Size)
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: diffID, Size: desc.Size}, nil
}

// applyBlob marks the snapshot of a blob layer.
func (d *Differ) applyBlob(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount) (digest.Digest, error) {
	id, err := d.o.Snapshotter.Locate(ctx, mounts)
	if err != nil {
		return "", fmt.Errorf("apply blob layer %s: %w", desc.Digest, err)
	}
	if err := d.o.Snapshotter.MarkEmpty(ctx, id); err != nil {
		return "", fmt.Errorf("apply blob layer %s: %w", desc.Digest, err)
	}
	return filetable.BlobDiffID(desc.Digest), nil
}

// applyTable makes the model of a table layer complete and shows it.
func (d *Differ) applyTable(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount) (digest.Digest, error) {
	id, err := d.o.Snapshotter.Locate(ctx, mounts)
	if err != nil {
		return "", fmt.Errorf("apply table layer %s: %w", desc.Digest, err)
	}
	table, err := d.readTable(ctx, desc)
	if err != nil {
		return "", fmt.Errorf("apply table layer %s: %w", desc.Digest, err)
	}
	from, err := d.repositories(ctx, desc)
	if err != nil {
		return "", fmt.Errorf("apply table layer %s: %w", desc.Digest, err)
	}
	ns, _ := namespaces.Namespace(ctx)
	first, upstream := d.contentSources(ns, from), d.o.Upstream(ctx, table, from)
	err = d.show(ctx, id, table, names(upstream, from), func() (bool, error) {
		return d.bring(ctx, snapshotter.ViewName(id), table, from, append(first, upstream...))
	})
	if err != nil {
		return "", err
	}
	return table, nil
}

// Show shows the model of a table, which the store must have, in the active snapshot id, as Apply of its table
// layer does: it returns when the model is complete, or can be read before, and may be shown. The model was
// pulled from repositories, and upstream is where its blobs are fetched. containerd's content store is not
// asked: it tells of blobs that their repository has them if an image there only names them.
func (d *Differ) Show(ctx context.Context, id string, table digest.Digest, from []Repository, upstream []transfer.Source) error {
	return d.show(ctx, id, table, names(upstream, from), func() (bool, error) {
		return d.bring(ctx, snapshotter.ViewName(id), table, from, upstream)
	})
}

// ShowReady is Show for who does not wait, and has made sure that the model may be shown. It returns
// errdefs.ErrFailedPrecondition for a model that is not complete and can not be read before it is.
func (d *Differ) ShowReady(ctx context.Context, id string, table digest.Digest, from []Repository, upstream []transfer.Source) error {
	return d.show(ctx, id, table, names(upstream, from), func() (bool, error) {
		early, err := d.expose(ctx, snapshotter.ViewName(id), table, from, upstream)
		if err != nil || early {
			return early, err
		}
		if _, err := d.o.Store.Files(ctx, table); errdefs.IsUnavailable(err) {
			return false, fmt.Errorf("%s is not complete, and can not be read before: %w", nameOf(table, from), errdefs.ErrFailedPrecondition)
		} else if err != nil {
			return false, err
		}
		return false, nil
	})
}

// show shows a model that bring makes complete, or readable before it is, which it says. The names of what it is got
// from are recorded.
func (d *Differ) show(ctx context.Context, id string, table digest.Digest, names []string, bring func() (early bool, err error)) error {
	start := time.Now()
	// Held before the first byte is fetched, so that no collection takes it away.
	if err := d.o.Snapshotter.Hold(ctx, id, table); err != nil {
		return err
	}
	if err := d.o.Snapshotter.GotFrom(ctx, id, names); err != nil {
		return err
	}
	early, err := bring()
	if err != nil {
		return err
	}
	if err := d.o.Snapshotter.Show(ctx, id, table); err != nil {
		return err
	}
	if early {
		d.o.Log.InfoContext(ctx, "model can be read, the rest is on its way", "table", table, "dur", time.Since(start))
	} else {
		d.logComplete(ctx, table, time.Since(start))
	}
	return nil
}

// bring makes a model complete, or readable in a view before it is, and says which. It is asked before and, if
// that is not known before, after whether it may be shown at all.
func (d *Differ) bring(ctx context.Context, view string, table digest.Digest, from []Repository, sources []transfer.Source) (early bool, err error) {
	pending, err := d.o.Check(ctx, table, from, false)
	if err != nil {
		return false, fmt.Errorf("model of table %s: %w", table, err)
	}
	if !pending {
		early, err = d.expose(ctx, view, table, from, sources)
	}
	if err == nil && !early {
		err = d.o.Store.Hydrate(ctx, table, store.HydrateOptions{Sources: sources})
	}
	if err != nil {
		return false, advise(fmt.Errorf("fetch %s: %w", nameOf(table, from), err))
	}
	if pending {
		if _, err = d.o.Check(ctx, table, from, true); err != nil {
			return false, fmt.Errorf("model of table %s: %w", table, err)
		}
	}
	return early, nil
}

// nameOf names a model for people.
func nameOf(table digest.Digest, from []Repository) string {
	if len(from) == 0 {
		return "the model of table " + table.String()
	}
	return "model " + from[0].String()
}

// advised is an error with what helps against it, which the owners of pods read.
type advised struct {
	error
	text string
}

func (e advised) Error() string { return e.text }

// Unwrap returns the error.
func (e advised) Unwrap() error { return e.error }

// advise adds what helps against an error in place of its category, if somebody can do something.
func advise(err error) error {
	for category, help := range map[error]string{
		errdefs.ErrResourceExhausted: "make room on the node, or run the pod on another one",
		errdefs.ErrDataLoss:          "the registry's copy is damaged, push the model again",
	} {
		if errors.Is(err, category) {
			return advised{err, strings.TrimSuffix(err.Error(), ": "+category.Error()) + "; " + help}
		}
	}
	return err
}

// names returns the names of sources, each once; if there are none, those of repositories.
func names(sources []transfer.Source, from []Repository) (l []string) {
	for _, s := range sources {
		if !slices.Contains(l, s.Name) {
			l = append(l, s.Name)
		}
	}
	if len(l) > 0 {
		return l
	}
	for _, r := range from {
		l = append(l, r.String())
	}
	return l
}

// reason returns what err says, without the categories at its end: that a model is not shown early is
// no failure.
func reason(err error) string {
	text := err.Error()
	for _, c := range []error{errdefs.ErrFailedPrecondition, errdefs.ErrUnavailable} {
		text = strings.TrimSuffix(text, ": "+c.Error())
	}
	return text
}

// expose makes a model readable in a view before it is complete, and says whether that is so.
func (d *Differ) expose(ctx context.Context, view string, table digest.Digest, from []Repository, sources []transfer.Source) (bool, error) {
	mode := Complete
	if d.o.Mode != nil && d.o.Snapshotter.Lazy() {
		mode = d.o.Mode(from)
	}
	if mode == Complete {
		return false, nil
	}
	err := d.o.Store.Expose(ctx, table, store.ExposeOptions{
		View: view, Sources: sources, Wait: mode == Lazy, Unverified: d.o.Unverified, Probe: true,
	})
	if errdefs.IsFailedPrecondition(err) {
		d.o.Log.InfoContext(ctx, "model is shown when it is complete", "table", table, "mode", mode, "reason", reason(err))
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if _, ok := d.o.Store.Early(table)[view]; !ok { // it is all there
		return false, nil
	}
	d.o.Background(view, table, sources)
	if mode == Auto {
		return true, d.o.Store.AwaitSmall(ctx, view, table)
	}
	return true, nil
}

// logComplete says that a model can be read.
func (d *Differ) logComplete(ctx context.Context, table digest.Digest, dur time.Duration) {
	files, err := d.o.Store.Files(ctx, table)
	if err != nil {
		d.o.Log.WarnContext(ctx, "model is complete, its size is not known", "table", table, "err", err)
		return
	}
	var size int64
	for _, f := range files {
		size += f.Size
	}
	d.o.Log.InfoContext(ctx, "model complete", "table", table, "files", len(files), "bytes", size, "dur", dur)
}

// readTable copies the table from containerd into the store.
func (d *Differ) readTable(ctx context.Context, desc ocispec.Descriptor) (digest.Digest, error) {
	ra, err := d.o.Content.ReaderAt(ctx, desc)
	if err != nil {
		return "", fmt.Errorf("read from the content store: %w", err)
	}
	defer ra.Close()
	p, err := verify.Read(bufio.NewReaderSize(content.NewReader(ra), contentBuffer), desc.Digest, desc.Size, filetable.MaxSize)
	if err != nil {
		return "", err
	}
	return d.o.Store.PutTable(ctx, p)
}

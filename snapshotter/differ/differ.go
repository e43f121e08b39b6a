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

// Options configure a Differ. Only Check, Mode, Background and Log may be nil.
type Options struct {
	// Content is containerd's content store.
	Content Content

	// Plain is containerd's diff service, which applies ordinary layers.
	Plain diff.Applier

	// Snapshotter made the snapshots that models are shown in.
	Snapshotter *snapshotter.Snapshotter

	// Store keeps the bytes of the models.
	Store *store.Store

	// Upstream returns the sources of the blobs of a table pulled from repositories, in order. The
	// result may be empty. The names are recorded for the snapshot.
	Upstream func(table digest.Digest, from []Repository) []transfer.Source

	// Known returns the name of a repository that a table is pulled from, in the form that is recorded and compared
	// everywhere, and whether repositories are known that differ from it only in the port of their host. Nil means that
	// the repository has its own name, and that there are none.
	Known func(table digest.Digest, r Repository) (name string, ports bool)

	// Check returns an error if the model of a table, pulled from repositories, must not be shown;
	// there are no repositories if they are unknown. If the answer is pending, Check is called
	// again, with complete set, when the model is complete. Nil allows every model.
	Check func(ctx context.Context, table digest.Digest, from []Repository, complete bool) (pending bool, err error)

	// Mode returns when to show a model pulled from repositories. Nil means Complete.
	Mode func(from []Repository) Mode

	// Background downloads the rest of a model that is already shown, until it is complete or no
	// longer referenced. It returns at once. view is the view in which the model is shown, and
	// sources are those that Apply would use. It is required for modes other than Complete.
	Background func(view string, table digest.Digest, sources []transfer.Source)

	// Prepare is called before a model is shown early: it may make more of its files readable. Nil: nothing does.
	Prepare func(ctx context.Context, table digest.Digest, sources []transfer.Source)

	// Log is the logger; nil discards.
	Log *slog.Logger
}

// A Mode determines when a model is shown.
type Mode string

// The modes. If the kernel or the source does not support a mode, Complete is used.
const (
	Complete Mode = "complete" // when every file is complete and verified
	Lazy     Mode = "lazy"     // when name, size and digest of every file are known
	Auto     Mode = "auto"     // as Lazy if the large files have chunk digests, otherwise as Complete
)

// brief is how long Show waits for a download. containerd holds a lock of its snapshotter meanwhile, behind which all
// other requests wait once a snapshot is removed.
const brief = 2 * time.Second

// ErrIncomplete is errdefs.ErrFailedPrecondition for a model that has to be downloaded first.
var ErrIncomplete = fmt.Errorf("%w", errdefs.ErrFailedPrecondition)

// Differ implements diff.Applier and diff.Comparer.
type Differ struct {
	o        Options
	patience time.Duration // of Show
	again    string        // value of annotationAgain, a secret of this process
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
	return &Differ{o: o, patience: brief, again: rand.Text()}
}

// Compare returns errdefs.ErrNotImplemented: containerd's own differ does it.
func (d *Differ) Compare(context.Context, []mount.Mount, []mount.Mount, ...diff.Opt) (ocispec.Descriptor, error) {
	return ocispec.Descriptor{}, fmt.Errorf("compare: %w", errdefs.ErrNotImplemented)
}

// Apply applies a layer to the mounts of an active snapshot and returns a descriptor with its
// diffID. For a table layer it returns when the model may be shown (Options.Check) and is complete
// or readable (Options.Mode).
//
// It returns errdefs.ErrFailedPrecondition for a layer of a model on mounts of another snapshotter,
// and errdefs.ErrNotImplemented for an ordinary layer on mounts that only containerd's mount
// manager supports, or that was passed on by this differ (see applyPlain).
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

// applyBlob marks the snapshot of a blob layer as empty.
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

// applyTable hydrates or exposes the model of a table layer and shows it.
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
	first, upstream := d.contentSources(ns, table, from), d.o.Upstream(table, from)
	err = d.show(ctx, id, table, names(upstream, from), func() (bool, error) {
		return d.ensure(ctx, snapshotter.ViewName(id), table, from, append(first, upstream...), 0)
	})
	if err != nil {
		return "", err
	}
	return table, nil
}

// Show shows the model of a table, which must be in the store, in the active snapshot id, as Apply
// of its table layer does. from are the repositories that the model was pulled from, and upstream
// the sources of its blobs. containerd's content store is not used: there, an image that only names
// a blob is enough to record its repository.
//
// Show waits two seconds for a download, and then returns errdefs.ErrUnavailable. The download goes on, as that of any
// caller that is gone (store.Options.Linger), and another Show finds it.
func (d *Differ) Show(ctx context.Context, id string, table digest.Digest, from []Repository, upstream []transfer.Source) error {
	return d.show(ctx, id, table, names(upstream, from), func() (bool, error) {
		return d.ensure(ctx, snapshotter.ViewName(id), table, from, upstream, d.patience)
	})
}

// ShowReady is Show for a model that may be shown, or may be shown if it is complete, without waiting
// for downloads. It returns ErrIncomplete if the model is neither complete nor readable: what is private to other
// sources is not complete.
func (d *Differ) ShowReady(ctx context.Context, id string, table digest.Digest, from []Repository, upstream []transfer.Source, complete bool) error {
	names := names(upstream, from)
	return d.show(ctx, id, table, names, func() (bool, error) {
		if !complete {
			early, err := d.expose(ctx, snapshotter.ViewName(id), table, from, upstream, 0)
			if errdefs.IsUnavailable(err) {
				err = fmt.Errorf("%s is not complete, and the rest of it cannot be downloaded now: %w", nameOf(table, from), err)
			}
			if err != nil || early {
				return early, err
			}
		}
		if _, err := d.o.Store.Views.Given(table, names); errdefs.IsUnavailable(err) {
			return false, fmt.Errorf("%s is not complete, and cannot be read before that: %w", nameOf(table, from), ErrIncomplete)
		} else if err != nil {
			return false, err
		}
		return false, nil
	})
}

// show shows a model after prepare has made it complete, or readable if early is true. names are the
// names of its sources, which are recorded.
func (d *Differ) show(ctx context.Context, id string, table digest.Digest, names []string, prepare func() (early bool, err error)) error {
	start := time.Now()
	// Held before the first byte is downloaded, so that garbage collection keeps it.
	if err := d.o.Snapshotter.Hold(ctx, id, table, names...); err != nil {
		return err
	}
	early, err := prepare()
	if err != nil {
		return err
	}
	if err := d.o.Snapshotter.Show(ctx, id, table); err != nil {
		return err
	}
	if early {
		d.o.Log.InfoContext(ctx, "model can be read; the rest is downloaded in the background", "table", table, "dur", time.Since(start))
	} else {
		d.logComplete(ctx, table, time.Since(start))
	}
	return nil
}

// ensure makes a model complete, or readable in a view, which it reports as early. It calls Check
// before and, if the answer was pending, after. patience is that of await.
func (d *Differ) ensure(ctx context.Context, view string, table digest.Digest, from []Repository, sources []transfer.Source, patience time.Duration) (early bool, err error) {
	pending, err := d.o.Check(ctx, table, from, false)
	if err != nil {
		return false, fmt.Errorf("model of table %s: %w", table, err)
	}
	if !pending {
		early, err = d.expose(ctx, view, table, from, sources, patience)
	}
	if err == nil && !early {
		err = d.await(ctx, table, patience, func(ctx context.Context) error {
			return d.o.Store.Hydrate(ctx, table, store.HydrateOptions{Sources: sources})
		})
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

// await calls wait, which waits for the download of a table. After patience, if it is not zero, wait is cancelled, and
// the error is errdefs.ErrUnavailable, with how much there is.
func (d *Differ) await(ctx context.Context, table digest.Digest, patience time.Duration, wait func(context.Context) error) error {
	waiting, cancel := within(ctx, patience)
	defer cancel()
	err := wait(waiting)
	if !errors.Is(err, context.DeadlineExceeded) || waiting.Err() == nil || ctx.Err() != nil {
		return err
	}
	st, err := d.o.Store.State(ctx, table)
	if err != nil {
		return err
	}
	return fmt.Errorf("it is being downloaded, %d of %d bytes are here; try again: %w", st.Done, st.Total, errdefs.ErrUnavailable)
}

// within returns ctx with a deadline after patience, unless that is zero.
func within(ctx context.Context, patience time.Duration) (context.Context, context.CancelFunc) {
	if patience == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, patience)
}

// nameOf returns the name of a model for messages.
func nameOf(table digest.Digest, from []Repository) string {
	if len(from) == 0 {
		return "the model of table " + table.String()
	}
	return "model " + from[0].String()
}

// advised is an error with advice for the owner of the pod.
type advised struct {
	error
	text string
}

func (e advised) Error() string { return e.text }

func (e advised) Unwrap() error { return e.error }

// advise replaces the category of an error with advice, if there is any.
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

// names returns the names of sources without duplicates, or those of the repositories if there are
// no sources.
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

// reason returns the text of err without the categories at its end, since showing a model later is
// not a failure.
func reason(err error) string {
	text := err.Error()
	for _, c := range []error{errdefs.ErrFailedPrecondition, errdefs.ErrUnavailable} {
		text = strings.TrimSuffix(text, ": "+c.Error())
	}
	return text
}

// expose makes a model readable in a view, depending on the mode, and reports whether it is
// incomplete. patience is that of await.
func (d *Differ) expose(ctx context.Context, view string, table digest.Digest, from []Repository, sources []transfer.Source, patience time.Duration) (bool, error) {
	mode := Complete
	if d.o.Mode != nil && d.o.Snapshotter.Lazy() {
		mode = d.o.Mode(from)
	}
	if mode == Complete {
		return false, nil
	}
	asking, cancel := within(ctx, patience)
	defer cancel()
	if d.o.Prepare != nil {
		d.o.Prepare(asking, table, sources)
	}
	err := d.o.Store.Views.Expose(asking, table, store.ExposeOptions{View: view, Sources: sources, Wait: mode == Lazy, Probe: true})
	if err != nil && asking.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("its registry is slow: %w", errdefs.ErrFailedPrecondition)
	}
	if errdefs.IsFailedPrecondition(err) {
		d.o.Log.InfoContext(ctx, "model is shown when it is complete", "table", table, "mode", mode, "reason", reason(err))
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if _, ok := d.o.Store.Views.Early(table)[view]; !ok { // it is complete
		return false, nil
	}
	d.o.Background(view, table, sources)
	if mode == Auto {
		return true, d.await(ctx, table, patience, func(ctx context.Context) error {
			err := d.o.Store.Views.AwaitSmall(ctx, view, table)
			if ctx.Err() != nil { // the download goes on, although the view ends
				_ = d.o.Store.Hydrate(ctx, table, store.HydrateOptions{Sources: sources})
			}
			return err
		})
	}
	return true, nil
}

// logComplete logs that a model is complete. Show has just looked for each of its files, of which there can be
// thousands.
func (d *Differ) logComplete(ctx context.Context, table digest.Digest, dur time.Duration) {
	files, err := d.o.Store.Views.Listing(table)
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
	if !d.o.Store.Has(desc.Digest) { // it is neither made nor judged here
		if _, err := filetable.Parse(p); err != nil {
			return "", err
		}
	}
	return d.o.Store.PutTable(p)
}

package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"
)

// Auto selects tree.Stubs if the kernel supports it, otherwise tree.Links.
const Auto tree.Backend = "auto"

// Options are the settings of a Snapshotter. The zero value works.
type Options struct {
	// Show is the backend of new snapshots. Empty means Auto.
	Show tree.Backend

	// Volume shows (Hold, Show) a model in the active snapshot id of an image volume. target is the
	// digest of an image without layers. The owner of the pod reads the error. If Volume is nil,
	// such image volumes are refused.
	Volume func(ctx context.Context, target digest.Digest, id string) error

	// Bare returns an error if a snapshot without a parent that is not for unpacking must be
	// refused. If it is nil, such snapshots are allowed.
	Bare func(ctx context.Context) error

	// Mounted is told of each complete model for which mounts are asked, but not of those for unpacking, with
	// the name of the snapshot and the view (store.View) that has its objects. It must not wait. It may be nil.
	Mounted func(name string, table digest.Digest, view string)

	// Log is the logger; nil discards.
	Log *slog.Logger
}

// Snapshotter implements snapshots.Snapshotter and snapshots.Cleaner.
type Snapshotter struct {
	snapshots.Snapshotter // overlay, for the methods that are not overridden

	overlay overlaySnapshotter
	meta    *storage.MetaStore // of overlay, for ids and parents
	unsure  bool               // meta has lost snapshots; set by New
	store   *store.Store
	root    string       // absolute, without symbolic links
	objects tree.Objects // of the store; their directory is the data-only lower layer
	backend tree.Backend // of new snapshots
	lazy    atomic.Pointer[lazyMount]
	volume  func(ctx context.Context, target digest.Digest, id string) error
	bare    func(ctx context.Context) error
	told    func(name string, table digest.Digest, view string) // Options.Mounted
	log     *slog.Logger

	empty   bool  // there was no snapshot when it was opened
	noStubs error // why the kernel mounts no stubs, if backend is tree.Links

	leaving sync.Map // ids of removed snapshots, whose directories a Cleanup removes

	asked  asked      // see Missing
	hiding sync.Mutex // serializes repairs of the hiding layer; no other lock is taken while it is held
}

// A lazyMount shows incomplete files; see UseLazy.
type lazyMount struct {
	dir   string
	users func(context.Context) error // reports why they cannot be id-mapped; may be nil
}

type overlaySnapshotter interface {
	snapshots.Snapshotter
	snapshots.Cleaner
}

// New returns a snapshotter that keeps its snapshots below root, which is created if needed. It
// returns errdefs.ErrInvalidArgument if a path cannot be part of mount options, and
// errdefs.ErrNotImplemented if the node does not support the backend in o.Show.
func New(root string, st *store.Store, o Options) (*Snapshotter, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	root, err := makeRoot(root)
	if err != nil {
		return nil, err
	}
	objects := st.ObjectsDir()
	if err := Mountable(objects); err != nil {
		return nil, err
	}
	backend, err := choose(o.Show, root, objects, o.Log)
	if err != nil {
		return nil, err
	}
	// Existing snapshots can have stubs even if new ones get links.
	if err := makeHide(filepath.Join(root, hideName)); err != nil && backend == tree.Stubs {
		return nil, err
	}
	var noStubs error
	if backend == tree.Links {
		noStubs = probe(root, probeStubs)
	}
	missing, err := prepareMetadata(root, o.Log)
	if err != nil {
		return nil, err
	}
	meta, err := storage.NewMetaStore(filepath.Join(root, metadataName), func(o *bbolt.Options) error {
		o.Timeout = lockTimeout
		return nil
	})
	if err != nil {
		return nil, err
	}
	unsure, err := raiseIDs(context.Background(), meta, filepath.Join(root, snapshotsName), missing)
	if err != nil {
		return nil, errors.Join(err, meta.Close())
	}
	empty, err := isEmpty(context.Background(), meta)
	if err != nil {
		return nil, errors.Join(err, meta.Close())
	}
	if unsure {
		o.Log.Error("metadata of some snapshots is lost; \"ballast verify --repair\" makes containerd forget them, \"ballast doctor\" names the images to pull again",
			"path", filepath.Join(root, metadataName))
	}
	inner, err := overlay.NewSnapshotter(root, overlay.WithMetaStore(meta), overlay.AsynchronousRemove, overlay.WithRemapIDs)
	if err != nil {
		return nil, errors.Join(err, meta.Close())
	}
	ov, ok := inner.(overlaySnapshotter)
	if !ok {
		panic("snapshotter: internal error: overlay does not clean up")
	}
	return &Snapshotter{
		Snapshotter: ov, overlay: ov, meta: meta, unsure: unsure, empty: empty && !unsure, store: st,
		root: root, backend: backend, noStubs: noStubs, volume: o.Volume, bare: o.Bare, told: o.Mounted,
		asked:   asked{names: map[string]bool{}},
		objects: tree.Objects{Dir: objects, Name: store.ObjectName, Size: st.Views.View("").Size}, log: o.Log,
	}, nil
}

// makeRoot creates the directory root and returns its real path.
func makeRoot(root string) (string, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return "", err
	}
	if root, err = filepath.EvalSymlinks(root); err != nil {
		return "", err
	}
	return root, Mountable(root)
}

// Mountable returns errdefs.ErrInvalidArgument if overlayfs would parse the path of a directory as
// several directories or as a different one.
func Mountable(dir string) error {
	if strings.ContainsAny(dir, ":,\\\n") {
		return fmt.Errorf("directory %q: a colon, comma, backslash or line break cannot be part of mount options: %w", dir, errdefs.ErrInvalidArgument)
	}
	return nil
}

// UseLazy allows models to be shown before they are complete. dir is a mount with the exposed files
// of the store (store.Expose): those of the view of a snapshot are in the directory named by its
// id, under their store.ObjectName. users returns an error if dir cannot be part of the mounts of
// user namespaces, which then get complete models only; nil means that it can.
//
// UseLazy returns errdefs.ErrInvalidArgument if the path cannot be part of mount options, and
// errdefs.ErrNotImplemented if the backend is not tree.Stubs.
func (s *Snapshotter) UseLazy(dir string, users func(context.Context) error) error {
	if s.backend != tree.Stubs {
		return fmt.Errorf("models are shown as %s: %w", s.backend, errdefs.ErrNotImplemented)
	}
	if err := Mountable(dir); err != nil {
		return err
	}
	s.lazy.Store(&lazyMount{dir, users})
	return nil
}

// Lazy reports whether models can be shown before they are complete.
func (s *Snapshotter) Lazy() bool { return s.lazy.Load() != nil }

// Backend returns the backend of new snapshots: tree.Stubs or tree.Links.
func (s *Snapshotter) Backend() tree.Backend { return s.backend }

// Prepare makes an active snapshot. For a blob layer it commits the empty snapshot and returns
// errdefs.ErrAlreadyExists, or returns a read-only mount if the parent is set at the commit. For an
// image volume without files that Options.Volume does not show, it returns
// errdefs.ErrFailedPrecondition.
func (s *Snapshotter) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	if parent == "" && isVolume(key) {
		return s.prepareVolume(ctx, key, opts)
	}
	if err := s.checkBare(ctx, key, parent); err != nil {
		return nil, err
	}
	labels, err := labelsOf(opts)
	if err != nil {
		return nil, err
	}
	opts = asLayer(labels, opts)
	if needsNoBytes(labels, parent) {
		return s.stage(ctx, key, opts)
	}
	if target := remoteTarget(labels, parent); target != "" {
		if err := s.prepareRemote(ctx, target, key, parent, opts); err != nil {
			return nil, err
		}
	}
	return s.create(ctx, s.overlay.Prepare, key, parent, opts)
}

// View makes a read-only snapshot, which is always exactly one mount.
func (s *Snapshotter) View(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	if err := s.checkBare(ctx, key, parent); err != nil {
		return nil, err
	}
	labels, err := labelsOf(opts)
	if err != nil {
		return nil, err
	}
	return s.create(ctx, s.overlay.View, key, parent, asLayer(labels, opts))
}

type createFunc func(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error)

// create makes a snapshot and its mounts. If the mounts fail, it removes the snapshot.
func (s *Snapshotter) create(ctx context.Context, f createFunc, key, parent string, opts []snapshots.Opt) ([]mount.Mount, error) {
	plain, err := f(ctx, key, parent, opts...)
	if err != nil {
		return nil, err
	}
	mounts, err := s.mounts(ctx, key, plain)
	if err != nil {
		if _, rerr := s.drop(context.WithoutCancel(ctx), key); rerr != nil {
			return nil, fmt.Errorf("%w; remove %q: %w", err, key, rerr)
		}
		return nil, err
	}
	return mounts, nil
}

// Mounts returns the mounts of an active snapshot or a view.
func (s *Snapshotter) Mounts(ctx context.Context, key string) ([]mount.Mount, error) {
	plain, err := s.overlay.Mounts(ctx, key)
	if err != nil {
		return nil, err
	}
	return s.mounts(ctx, key, plain)
}

// Commit commits an active snapshot. It returns errdefs.ErrFailedPrecondition for a model that is
// not completely shown, and for a layer without its parent.
func (s *Snapshotter) Commit(ctx context.Context, name, key string, opts ...snapshots.Opt) error {
	id, info, err := s.info(ctx, key)
	if err != nil {
		return err
	}
	if err := checkParent(info, name, opts); err != nil {
		return err
	}
	m, err := readMarker(s.snapshotDir(id))
	if err != nil {
		return err
	}
	if m.Table != "" && !m.Shown {
		return fmt.Errorf("commit %q: model %s is not complete: %w", name, m.Table, errdefs.ErrFailedPrecondition)
	}
	if _, err := s.store.Catalog.Ref(refName(id)); err == nil && m.Table == "" {
		return fmt.Errorf("commit %q: %s of a model is missing: %w", name, markerName, errdefs.ErrFailedPrecondition)
	}
	return s.overlay.Commit(ctx, name, key, withShows(opts, m)...)
}

// Usage returns the disk usage of a snapshot. An object that several snapshots show counts for the
// oldest of them only.
func (s *Snapshotter) Usage(ctx context.Context, key string) (snapshots.Usage, error) {
	id, _, err := s.info(ctx, key)
	if err != nil {
		return snapshots.Usage{}, err
	}
	m, err := readMarker(s.snapshotDir(id))
	if err != nil {
		return snapshots.Usage{}, err
	}
	if m.Table == "" {
		return s.overlay.Usage(ctx, key)
	}
	ref, err := s.store.Catalog.Ref(refName(id))
	if err != nil && !errdefs.IsNotFound(err) {
		return snapshots.Usage{}, err
	}
	return snapshots.Usage{Size: m.Size + ref.Size, Inodes: m.Inodes + ref.Inodes}, nil
}

// Remove removes a snapshot; the next Cleanup removes its directory. It returns
// errdefs.ErrFailedPrecondition while the snapshot has children.
func (s *Snapshotter) Remove(ctx context.Context, key string) error {
	// Metadata first: while the snapshot has children, its objects must stay.
	id, err := s.drop(ctx, key)
	if err != nil {
		return err
	}
	s.release(context.WithoutCancel(ctx), id)
	return nil
}

// drop removes the metadata of a snapshot; the next Cleanup removes its directory.
func (s *Snapshotter) drop(ctx context.Context, key string) (id string, err error) {
	if id, _, err = s.info(ctx, key); err != nil {
		return "", err
	}
	s.leaving.Store(id, true)
	if err = s.overlay.Remove(ctx, key); err != nil {
		s.leaving.Delete(id)
	}
	return id, err
}

// release removes the reference of a removed snapshot. Errors are only logged, because Remove
// cannot be repeated; the next Cleanup tries again.
func (s *Snapshotter) release(ctx context.Context, id string) {
	_, err := s.store.Catalog.Ref(refName(id))
	if errdefs.IsNotFound(err) {
		return // an ordinary snapshot: no write is needed
	}
	if err == nil {
		err = s.store.RemoveRef(refName(id))
	}
	if err != nil {
		s.log.WarnContext(ctx, "objects of a removed snapshot stay until the next cleanup", "snapshot", id, "err", err)
	}
}

// info returns the id of a snapshot and its record in overlay's metadata.
func (s *Snapshotter) info(ctx context.Context, key string) (id string, info snapshots.Info, err error) {
	err = s.meta.WithTransaction(ctx, false, func(ctx context.Context) error {
		id, info, _, err = storage.GetInfo(ctx, key)
		return err
	})
	return id, info, err
}

func (s *Snapshotter) snapshotDir(id string) string {
	return filepath.Join(s.root, snapshotsName, id)
}

func (s *Snapshotter) upperDir(id string) string {
	return filepath.Join(s.snapshotDir(id), "fs")
}

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/cmd/internal/fleet"
	"github.com/ballast-dev/ballast/cmd/internal/upstream"
	"github.com/ballast-dev/ballast/convert/pullsecret"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/snapshotter"
	"github.com/ballast-dev/ballast/snapshotter/differ"
	"github.com/ballast-dev/ballast/snapshotter/lazy"
	"github.com/ballast-dev/ballast/snapshotter/lazy/fdstore"
	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	notify "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
)

// stopTimeout is how long requests that run may take to end when the daemon stops. The kubelet
// and containerd try again what was cut off.
const stopTimeout = 5 * time.Second

// sweepEvery is the time between two collections of what has expired.
const sweepEvery = time.Hour

// keepAll makes a collection leave all objects and take only what has expired.
const keepAll = 1<<63 - 1

// A Daemon is ballastd. Build it with New, start it with Run, and Close it.
type Daemon struct {
	config  *config.Config
	version admin.Version
	started time.Time
	log     *slog.Logger

	store       *store.Store
	remote      *remote.Client
	facade      *registry.Handler
	port        *facadePort
	passed      map[string]*os.File // by the service manager, but for the facade's
	secrets     *pullsecret.Secrets
	settling    sync.Mutex // held by settleSecrets
	snapshotter *snapshotter.Snapshotter
	differ      *differ.Differ
	containerd  *grpc.ClientConn
	pulls       *pulls
	background  *background
	origins     *origins
	mounts      *hostMounts
	lazy        atomic.Pointer[lazy.Mount] // nil if models are shown when they are complete
	lazyWhy     atomic.Pointer[string]     // why lazy is nil
	holder      fdstore.Options            // of lazy; set by startLazy
	metrics     *metrics
}

// Version returns the version of this program.
func Version() string { return admin.ThisVersion().Version }

// New builds the parts of a daemon. It starts nothing, but opens the store.
//
// It returns errdefs.ErrUnavailable if another daemon has the store, and
// errdefs.ErrFailedPrecondition if the root can not be one.
func New(c *config.Config, log *slog.Logger) (_ *Daemon, err error) {
	v := admin.ThisVersion()
	d := &Daemon{config: c, version: v, started: time.Now(), log: log}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	if err := checkRoot(c.Root); err != nil {
		return nil, err
	}
	if err := closeRoot(c.Root, log); err != nil {
		return nil, err
	}
	d.store, err = store.Open(c.Root, storeOptions(c, log))
	if err != nil {
		return nil, err
	}
	d.metrics = newMetrics(d.store, log)
	d.remote, err = remote.New(upstream.Options(c, v.Version, log))
	if err != nil {
		return nil, err
	}
	resolver := upstream.Resolver(c, d.remote, log)
	if err := os.MkdirAll(resolver.Carton.TempDir, 0o700); err != nil {
		return nil, err
	}
	if err := doubtNames(context.Background(), c, d.store); err != nil {
		return nil, err
	}
	if d.secrets, err = openSecrets(c, log); err != nil {
		return nil, err
	}
	d.facade = &registry.Handler{
		Resolver: resolver, Store: d.store, Secrets: d.secrets, Log: log,
		Pulled: d.heal, Refused: func(limit string) { d.metrics.refused(limit) }, Origins: c.Facade.OriginDigests,
	}
	if len(c.Fleet.Nodes) > 0 {
		d.facade.Hints = (&fleet.Client{Keys: fleetKeys(c), Nodes: c.Fleet.Nodes, Log: log}).Hints
	}
	if err := d.watchSignatures(); err != nil {
		return nil, err
	}
	d.containerd, err = differ.Dial(c.Containerd.Address)
	if err != nil {
		return nil, err
	}
	d.origins, d.mounts = newOrigins(d), newHostMounts(d)
	d.snapshotter, err = snapshotter.New(c.Root, d.store, snapshotter.Options{
		Show: tree.Backend(c.Snapshot.Show), Volume: d.origins.volume, Bare: d.origins.bareSnapshot, Log: log,
	})
	if err != nil {
		return nil, err
	}
	d.store.SetRate(int64(c.Lazy.Rate))
	d.background = &background{
		store: d.store, sources: d.shownFrom, shown: d.snapshotter.Shows, view: d.snapshotter.ViewOf, log: log,
		options: store.ExposeOptions{Wait: true, Unverified: c.Lazy.Verify == config.VerifyAfter},
	}
	d.differ = differ.New(differ.Options{
		Content: d.origins.content, Plain: differ.DiffService(d.containerd),
		Snapshotter: d.snapshotter, Store: d.store,
		Upstream: d.pulled, Log: log,
		Check: d.signed, Mode: d.mode, Unverified: c.Lazy.Verify == config.VerifyAfter, Background: d.background.start,
	})
	d.background.ended = func() { d.settleSecrets(context.Background()) }
	d.metrics.registry.MustRegister(&lazyCollector{store: d.store, mount: d.lazy.Load, unverified: c.Lazy.Verify == config.VerifyAfter})
	if err := d.takePassed(); err != nil {
		return nil, err
	}
	d.pulls = &pulls{convert: d.facade.Convert, sources: d.facade.NodeSources, admit: d.facade.Admit, store: d.store, metrics: d.metrics, log: log}
	return d, nil
}

// takePassed takes what the service manager hands over. It may be called once.
func (d *Daemon) takePassed() (err error) {
	m := config.Manager()
	if d.passed, err = fdstore.ListenFiles(m.ListenPID, m.ListenFDs, m.ListenNames); err != nil {
		return fmt.Errorf("files of the service manager: %w", err)
	}
	d.port = &facadePort{
		config: d.config, handler: d.facade, log: d.log, passed: d.passed[facadeSocket],
		up: d.metrics.facadeUp, refused: d.metrics.facadeRefused,
	}
	delete(d.passed, facadeSocket)
	return nil
}

// checkRoot returns errdefs.ErrFailedPrecondition, and what to do, for a root that can not
// hold the store.
func checkRoot(root string) error {
	info, err := os.Stat(root)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil // the store makes it
	case err != nil:
		return fmt.Errorf("root: %w", err)
	case !info.IsDir():
		return fmt.Errorf("root %s is not a directory: %w", root, errdefs.ErrFailedPrecondition)
	}
	base := info.Sys().(*syscall.Stat_t).Dev
	for _, p := range rootParts {
		info, err := os.Stat(filepath.Join(root, p))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("root: %w", err)
		}
		if info.Sys().(*syscall.Stat_t).Dev != base {
			return fmt.Errorf("%s is on another file system than %s; mount one file system at the root: %w", filepath.Join(root, p), root, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// closeRoot takes from others what they had of a root: until now its objects were readable for all. What is
// below the directories at its top can not be reached then.
func closeRoot(root string, log *slog.Logger) error {
	entries, err := os.ReadDir(root)
	if errors.Is(err, os.ErrNotExist) {
		return nil // the store makes it
	}
	if err != nil {
		return fmt.Errorf("root: %w", err)
	}
	dirs := []string{root}
	for _, e := range entries {
		if e.IsDir() && e.Name() != lazyDir { // which can be a mount that nobody serves
			dirs = append(dirs, filepath.Join(root, e.Name()))
		}
	}
	var closed []string
	for _, d := range dirs {
		info, err := os.Stat(d)
		if err != nil {
			return fmt.Errorf("root: %w", err)
		}
		if info.Mode().Perm()&^privateMode == 0 {
			continue
		}
		if err := os.Chmod(d, privateMode); err != nil {
			return fmt.Errorf("root: %w", err)
		}
		closed = append(closed, fmt.Sprintf("%s (%04o)", d, info.Mode().Perm()))
	}
	if closed != nil {
		log.Warn("directories that others could enter are closed to them", "dirs", strings.Join(closed, ", "))
	}
	return nil
}

// privateMode is the mode of directories in which others have no business.
const privateMode fs.FileMode = 0o700

// rootParts are the directories below the root that have to be on one file system.
var rootParts = []string{"objects", "partial", "snapshots"}

func storeOptions(c *config.Config, log *slog.Logger) store.Options {
	return store.Options{
		Connections: c.Fetch.Connections,
		Reserve:     max(1, int64(c.Fetch.Reserve)), // the store takes 0 for its default
		Linger:      max(1, c.Fetch.Linger.Duration),
		Evict: store.EvictOptions{
			Interval: c.GC.Interval.Duration,
			High:     int(c.GC.High),
			Low:      int(c.GC.Low),
			Quota:    int64(c.GC.Quota),
		},
		Log: log,
	}
}

// Run serves until ctx ends, which is no error, or a part fails.
func (d *Daemon) Run(ctx context.Context) error {
	limitMemory(d.store.Memory())
	if err := d.snapshotter.Reconcile(ctx); err != nil {
		return fmt.Errorf("reconcile snapshots: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(d.background.begin(ctx))
	if err := d.serve(ctx, g); err != nil {
		g.Go(func() error { return err }) // ends what runs already: it uses the store, which is closed next
	}
	err := g.Wait()
	d.log.Info("stopped", "dur", time.Since(d.started).Round(time.Second))
	return err
}

// serve starts all parts in g. An error says that one could not be started.
func (d *Daemon) serve(ctx context.Context, g *errgroup.Group) error {
	d.settleSecrets(ctx)
	if err := d.startLazy(ctx); err != nil {
		return err
	}
	if err := d.snapshotter.Inspect(ctx); err != nil {
		return fmt.Errorf("look at snapshots: %w", err)
	}
	l, err := d.listen()
	if err != nil {
		return err
	}
	if d.config.Facade.Listen != "" {
		first, err := d.port.open()
		if err != nil {
			d.port.note(err)
		}
		g.Go(func() error { return d.port.run(ctx, first) })
	}
	g.Go(func() error { return d.watchLazy(ctx) })
	g.Go(func() error { return d.store.Run(ctx) })
	g.Go(func() error { return d.pulls.run(ctx) })
	g.Go(func() error { return d.sweep(ctx) })
	g.Go(func() error { return d.origins.run(ctx) })
	g.Go(func() error { return d.mounts.run(ctx) })
	g.Go(func() error { return serveGRPC(ctx, d.grpcServer(), l.grpc) })
	g.Go(func() error {
		return serveHTTP(ctx, d.log, logged(d.log, "admin request", d.admin().Routes()), l.admin)
	})
	if d.config.Fleet.Listen != "" {
		g.Go(func() error { return d.serveFleet(ctx) })
	}
	if a := d.config.Metrics.Listen; a != "" {
		g.Go(func() error { return d.serveMetrics(ctx, a) })
	}
	d.log.Info("ready", "version", d.version.Version, "dir", d.config.Root, "address", d.config.Address,
		"admin", d.config.AdminAddress, "facade", d.config.Facade.Listen, "show", d.snapshotter.Backend())
	if _, err := notify.SdNotify(false, notify.SdNotifyReady); err != nil {
		d.log.Warn("the service manager does not know that the daemon is ready", "err", err)
	}
	g.Go(func() error {
		<-ctx.Done()
		_, err := notify.SdNotify(false, notify.SdNotifyStopping)
		return err
	})
	return nil
}

// sweep collects what has expired (pins, unfinished fetches that nobody goes on with) until
// ctx ends. Objects make room when it is needed, which is the store's.
func (d *Daemon) sweep(ctx context.Context) error {
	return every(ctx, sweepEvery, func() {
		if _, err := d.store.GC(ctx, store.GCOptions{Keep: keepAll}); err != nil && ctx.Err() == nil {
			d.log.Error("collect what has expired", "err", err)
		}
		d.settleSecrets(ctx)
		limitMemory(d.store.Memory()) // there can be more objects
	})
}

// every calls do again and again, the first time after a while, until ctx ends. It returns nil.
func every(ctx context.Context, while time.Duration, do func()) error {
	tick := time.NewTicker(while)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			do()
		}
	}
}

// goMemory is how many bytes the Go heap and stacks may have before the garbage collector works harder. The chunks of
// the store (store.Options.Connections) and the answers of the lazy mount (lazy.MaxBuffers) come on top of it, and what the store knows of its objects (store.Memory).
const goMemory = 64 << 20

// limitMemory sets goMemory and the bytes that the store has in it, unless who started the process set another
// limit.
func limitMemory(store int64) {
	if !config.MemoryLimited() {
		debug.SetMemoryLimit(goMemory + store)
	}
}

// Close closes what New opened. Fetches stop and keep what they have.
func (d *Daemon) Close() error {
	var errs []error
	if m := d.lazy.Load(); m != nil { // first: who reads is to wait for the next daemon, not to get an error
		errs = append(errs, m.Close())
	}
	if d.facade != nil {
		errs = append(errs, d.facade.Close())
	}
	if d.snapshotter != nil {
		errs = append(errs, d.snapshotter.Close())
	}
	if d.containerd != nil {
		errs = append(errs, d.containerd.Close())
	}
	if d.secrets != nil {
		errs = append(errs, d.secrets.Close())
	}
	if d.store != nil {
		errs = append(errs, d.store.Close())
	}
	if d.remote != nil {
		d.remote.Close()
	}
	return errors.Join(errs...)
}

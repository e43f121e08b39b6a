package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/ahead"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/care"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/hashtables"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/hostmounts"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/jobs"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/metrics"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/origins"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/tracing"
	"github.com/ballast-dev/ballast/cmd/internal/door/facadeport"
	"github.com/ballast-dev/ballast/cmd/internal/door/serve"
	"github.com/ballast-dev/ballast/cmd/internal/door/upstream"
	"github.com/ballast-dev/ballast/cmd/internal/host/ctrd"
	"github.com/ballast-dev/ballast/cmd/internal/host/dirs"
	"github.com/ballast-dev/ballast/cmd/internal/host/localgrpc"
	"github.com/ballast-dev/ballast/convert/pullsecret"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/snapshotter"
	"github.com/ballast-dev/ballast/snapshotter/differ"
	"github.com/ballast-dev/ballast/snapshotter/lazy"
	"github.com/ballast-dev/ballast/snapshotter/lazy/fdstore"
	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store"
	notify "github.com/coreos/go-systemd/v22/daemon"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
)

// A Daemon is ballastd. Create it with New, start it with Run, and Close it.
type Daemon struct {
	config  *config.Config
	version wire.Version
	started time.Time
	log     *slog.Logger

	store       *store.Store
	remote      *remote.Client
	facade      *registry.Handler
	port        *facadeport.Port
	secrets     *pullsecret.Secrets
	ahead       *ahead.Ahead // nil if models are never read ahead
	snapshotter *snapshotter.Snapshotter
	differ      *differ.Differ
	containerd  *ctrd.Client
	jobs        *jobs.Jobs
	origins     *origins.Origins
	snapshots   *care.Snapshots
	care        *care.Care
	mounts      *hostmounts.Mounts
	tables      *hashtables.Tables                 // nil without a repository of tables
	lazy        atomic.Pointer[lazy.Mount]         // nil if models are shown when they are complete
	lazyWhy     atomic.Pointer[string]             // why lazy is nil
	closed      atomic.Pointer[[]config.HostsFile] // as watchHosts has read them last
	holder      fdstore.Options                    // settings of lazy; set by startLazy
	metrics     *metrics.Metrics
	traces      *tracing.Traces
	providers   upstream.Lookup // plugins of the kubelet; nil without any
}

// Version returns the version of this program.
func Version() string { return wire.ThisVersion().Version }

// New builds the parts of a daemon. It opens the store but starts nothing.
//
// It returns errdefs.ErrUnavailable if another daemon uses the store, and
// errdefs.ErrFailedPrecondition if the root or the directory of a socket is not suitable.
func New(c *config.Config, log *slog.Logger) (*Daemon, error) {
	d := &Daemon{config: c, version: wire.ThisVersion(), started: time.Now(), log: log}
	if err := d.startTraces(); err != nil {
		log.Warn("traces are not sent", "err", err)
	}
	for _, build := range []func() error{d.openStore, d.buildFacade, d.buildTables, d.buildAhead, d.buildSnapshotter, d.takePassed} {
		if err := build(); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	return d, nil
}

// startTraces sends traces if the environment names a collector.
func (d *Daemon) startTraces() error {
	protocol, err := config.Traces()
	if err != nil {
		return err
	}
	d.traces, err = tracing.Start(context.Background(), protocol, d.version.Version, d.log)
	return err
}

func (d *Daemon) openStore() (err error) {
	if err := checkDirs(d.config); err != nil {
		return err
	}
	others, err := dirs.Foreign(d.config, "/")
	if err != nil {
		return err
	}
	if len(others) > 0 {
		d.log.Warn("there are files of others in the directories of ballast; they stay when ballast is removed", "paths", others)
	}
	o := storeOptions(d.config, d.log)
	o.Completed = func(table digest.Digest) { d.tables.Completed(table) }
	if d.store, err = store.Open(d.config.Root, o); err != nil {
		return err
	}
	d.store.SetRate(int64(d.config.Lazy.Rate))
	d.metrics = metrics.New(d.store, d.version, d.log)
	d.metrics.WatchLazy(d.lazy.Load)
	d.secrets, err = jobs.OpenSecrets(d.config, d.log)
	return err
}

func (d *Daemon) buildFacade() (err error) {
	c := d.config
	d.closed.Store(&c.Facade.Closed)
	d.providers = upstream.Providers(c)
	o := upstream.Options(c, d.version.Agent(), d.providers, d.log)
	o.CertsDirs = func() []string { return upstream.CertsDirs(*d.closed.Load()) }
	if d.remote, err = remote.New(o); err != nil {
		return err
	}
	d.metrics.WatchSources(d.remote.ReceivedDirectly, d.mirrors)
	resolver := upstream.Resolver(c, d.remote, d.log)
	if err := os.MkdirAll(resolver.Settings.TempDir, 0o700); err != nil {
		return err
	}
	if err := jobs.RemoveExtracted(resolver.Settings.TempDir); err != nil {
		return err
	}
	d.facade = &registry.Handler{
		Resolver: resolver, Store: d.store, Secrets: d.secrets, Log: d.log,
		Pulled:  d.pulled,
		Refused: d.metrics.Refused, Origins: c.Facade.OriginDigests,
	}
	return d.watchSignatures()
}

// pulled is registry.Handler.Pulled.
func (d *Daemon) pulled(ctx context.Context, im store.Image) {
	if d.tables != nil && d.lazy.Load() != nil && slices.ContainsFunc(registry.Names(im), func(name string) bool {
		return d.config.Lazy.ModeOf(name) != config.ModeComplete
	}) {
		d.tables.Pulled(im)
	}
	d.jobs.Heal(ctx, im)
}

// buildTables builds what uses tables of hash states. Those by keys that are not trusted any more are dropped before a
// file can be read.
func (d *Daemon) buildTables() error {
	keys, err := hashtables.ReadKeys(d.config.Lazy)
	if err != nil {
		return err
	}
	if err := d.store.TrustChains(keys.Names()...); err != nil {
		return err
	}
	d.tables, err = hashtables.New(d.config.Lazy, keys, d.store, d.remote, d.log)
	return err
}

// buildSnapshotter builds the snapshotter and the differ, and the sources they download from.
func (d *Daemon) buildSnapshotter() (err error) {
	c, log := d.config, d.log
	if d.containerd, err = ctrd.Dial(c.Containerd.Address, localgrpc.Patience); err != nil {
		return err
	}
	d.origins = origins.New(origins.Options{
		Containerd: d.containerd, Store: d.store, Facade: d.facade, Off: !c.Facade.OriginDigests, Log: log,
		Show: func(ctx context.Context, id string, im store.Image, names []string, private bool) error {
			sources := d.facade.PublicSources(im, names...)
			if private {
				sources = d.facade.Sources(im, names[0])
			}
			return d.differ.Show(ctx, id, im.Table, jobs.Repositories(names), sources)
		},
		Fetch: func(ctx context.Context, im store.Image, name string) error {
			return d.store.Hydrate(ctx, im.Table, store.HydrateOptions{Sources: d.facade.Sources(im, name)})
		},
	})
	d.snapshotter, err = snapshotter.New(c.Root, d.store, snapshotter.Options{
		Show: tree.Backend(c.Snapshot.Show), Volume: d.origins.Volume, Bare: d.origins.Bare, Mounted: d.mounted, Log: log,
	})
	if err != nil {
		return err
	}
	sources := &jobs.Sources{Store: d.store, Facade: d.facade, Snapshotter: d.snapshotter, Secrets: d.secrets, Log: log}
	list := &jobs.List{}
	d.jobs = &jobs.Jobs{
		List:  list,
		Store: d.store, Facade: d.facade, Sources: sources, Lazy: d.lazy.Load, Metrics: d.metrics, Temp: d.facade.Settings.TempDir, Log: log,
		Background: &jobs.Background{
			Store: d.store, Sources: sources.Shown, Shows: d.snapshotter.Shows, View: d.snapshotter.ViewOf, Log: log,
			Whole: d.facade.Signatures.Whole, Order: sources.Order,
			Ended: func() { sources.PruneSecrets() }, List: list,
		},
	}
	d.differ = differ.New(differ.Options{
		Content: d.containerd.Content, Plain: differ.DiffService(d.containerd.Conn()), Snapshotter: d.snapshotter, Store: d.store,
		Upstream: sources.Pulled, Known: sources.Known, Check: d.signed, Mode: d.mode, Background: d.jobs.Background.Start,
		Prepare: d.tables.Prepare, Log: log,
	})
	d.mounts = hostmounts.New(hostmounts.Options{
		Dir: filepath.Join(filepath.Dir(c.Address), dirs.Models), Store: d.store, Facade: d.facade, Sources: sources,
		Snapshotter: d.snapshotter, Differ: d.differ, Log: log,
	})
	d.snapshots = &care.Snapshots{Store: d.store, Snapshotter: d.snapshotter, Containerd: d.containerd, Origins: d.origins, Address: c.Address, Log: log}
	d.care = &care.Care{
		Store: d.store, Jobs: d.jobs, Sources: sources, Snapshots: d.snapshots, Held: []care.Releaser{d.origins, d.mounts}, Log: log,
		Swept: func(ctx context.Context) {
			sources.PruneSecrets()
			limitMemory(d.store.Memory()) // the number of objects may have grown
		},
	}
	return nil
}

// takePassed takes the files passed by the service manager, and builds the port of the facade. It
// can be called once.
func (d *Daemon) takePassed() error {
	m := config.Manager()
	passed, err := fdstore.Passed(m.ListenPID, m.ListenFDs, m.ListenNames)
	if err != nil {
		return fmt.Errorf("files of the service manager: %w", err)
	}
	var socket *os.File
	if fd, ok := passed[facadeport.SocketName]; ok {
		socket = os.NewFile(uintptr(fd), facadeport.SocketName)
	}
	d.port = facadeport.New(d.config, d.traces.HTTP(d.facade), d.metrics, d.log, socket)
	return nil
}

// Run serves until a part fails or ctx ends, which is not an error.
func (d *Daemon) Run(ctx context.Context) error {
	limitMemory(d.store.Memory())
	warnOfDescriptors(d.log)
	if err := d.snapshotter.Reconcile(ctx); err != nil {
		return fmt.Errorf("reconcile snapshots: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(d.jobs.Background.Begin(ctx))
	if err := d.serve(ctx, g); err != nil {
		g.Go(func() error { return err }) // stop the running parts: they use the store, which is closed next
	}
	err := g.Wait()
	d.log.Info("stopped", "dur", time.Since(d.started).Round(time.Second))
	return err
}

// serve starts all parts in g. It returns an error if one cannot be started.
func (d *Daemon) serve(ctx context.Context, g *errgroup.Group) error {
	d.jobs.Sources.PruneSecrets()
	if err := d.startLazy(ctx); err != nil {
		return err
	}
	if err := d.snapshotter.Inspect(ctx); err != nil {
		return fmt.Errorf("look at snapshots: %w", err)
	}
	if err := d.mounts.ReleaseUnneeded(ctx); err != nil { // containerd may start later
		d.log.Warn("models may stay whose mounts are gone", "err", err)
	}
	public, err := d.openResolve()
	if err != nil {
		return err
	}
	grpc, admin, err := d.listen()
	if err != nil {
		return err
	}
	handler := d.admin()
	if public != nil {
		g.Go(func() error { return serve.Public(ctx, d.log, handler.ResolveRoutes(serve.User), public) })
	}
	if d.config.Facade.Listen != "" {
		g.Go(d.port.Open(ctx))
	}
	g.Go(func() error { return d.watchLazy(ctx) })
	g.Go(func() error { return d.watchHosts(ctx) })
	g.Go(func() error { return d.store.Run(ctx) })
	g.Go(func() error { return d.tables.Run(ctx) })
	if d.ahead != nil {
		g.Go(func() error { return d.ahead.Run(ctx) })
	}
	g.Go(func() error { return d.jobs.Run(ctx) })
	g.Go(func() error { return d.care.Run(ctx, d.config.Scrub.Interval.Duration, int64(d.config.Scrub.Rate)) })
	g.Go(func() error { return serve.GRPC(ctx, d.grpcServer(), grpc) })
	if d.snapshotter.Empty() { // otherwise no pod of ballast starts, not even one that repairs this
		g.Go(func() error { d.snapshots.ForgetLost(ctx); return nil })
	}
	g.Go(func() error {
		return serve.HTTP(ctx, d.log, serve.Logged(d.log, "admin request", handler.Routes()), admin)
	})
	for role, routes := range map[string]http.Handler{dirs.Status: handler.StatusRoutes(), dirs.Fleet: serve.Logged(d.log, "fleet request", handler.FleetRoutes())} {
		if l, err := serve.Unix(dirs.RoleAddress(d.config, role)); err != nil { // the path can be too long
			d.log.Warn("pods that watch the daemon need the admin socket", "role", role, "err", err)
		} else {
			g.Go(func() error { return serve.HTTP(ctx, d.log, routes, l) })
		}
	}
	if a := d.config.Metrics.Listen; a != "" {
		g.Go(func() error { return d.serveMetrics(ctx, a) })
	}
	d.log.Info("ready", "version", d.version.Version, "dir", d.config.Root, "address", d.config.Address,
		"admin", d.config.AdminAddress, "facade", d.config.Facade.Listen, "show", d.snapshotter.Backend())
	if _, err := notify.SdNotify(false, notify.SdNotifyReady); err != nil {
		d.log.Warn("the service manager does not know that the daemon is ready", "err", err)
	}
	g.Go(func() error { return d.watchdog(ctx) })
	g.Go(func() error {
		<-ctx.Done()
		_, err := notify.SdNotify(false, notify.SdNotifyStopping)
		return err
	})
	return nil
}

// Close closes what New opened. Downloads stop and keep their bytes.
func (d *Daemon) Close() error {
	var errs []error
	if m := d.lazy.Load(); m != nil { // first: readers wait for the next daemon instead of getting an error
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
	if err := d.traces.Close(); err != nil {
		d.log.Warn("the last traces are not sent", "err", err)
	}
	return errors.Join(errs...)
}

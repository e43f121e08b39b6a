package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/admin"
	"github.com/ballast-dev/ballast/cmd/internal/door/facadetls"
	"github.com/ballast-dev/ballast/cmd/internal/door/hostsfile"
	"github.com/ballast-dev/ballast/cmd/internal/host/containerdversion"
	"github.com/ballast-dev/ballast/cmd/internal/installer/node"
	"github.com/ballast-dev/ballast/cmd/internal/installer/snippet"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/signature/keyless"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/durable"
	"github.com/ballast-dev/ballast/store/storetest/disktest"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

const testVersion = "1.2.3"

// A machine is a healthy node, until a test changes it.
type machine struct {
	dir     string
	doctor  *Doctor
	version string // of containerd
	unknown error  // why it is unknown
	health  wire.Health
	mounts  []wire.Mount
	keys    *facadetls.Keys
	hangs   atomic.Bool    // the facade
	stop    func()         // the daemon
	client  *remote.Client // nil: all registries answer it
}

func newNode(t *testing.T) *machine {
	t.Helper()
	dir := t.TempDir()
	cfg := config.Default()
	cfg.Root = filepath.Join(dir, "root")
	cfg.Address = filepath.Join(dir, "ballastd.sock")
	cfg.AdminAddress = filepath.Join(dir, "admin.sock")
	cfg.Containerd.Address = filepath.Join(dir, "containerd.sock")
	cfg.Fetch.Reserve = 1
	cfg.GC.High = 100
	n := &machine{dir: dir, version: containerdversion.Newest.String(), doctor: &Doctor{
		Config: cfg, Version: testVersion, Client: wire.NewClient(cfg.AdminAddress),
		Touch:      func(string) error { return nil },
		Probe:      func(string) error { return nil },
		ProbeUsers: func(string) error { return nil },
	}}
	t.Cleanup(n.doctor.Client.Close)
	n.write(t, "config.toml", "version = 4\nimports = [\"conf.d/*.toml\"]\n")
	var b strings.Builder
	if err := (snippet.Containerd{
		Address: cfg.Address, Root: cfg.Root, Platform: node.HostPlatform(), HostsDir: filepath.Join(dir, "certs.d"),
	}).Write(&b); err != nil {
		t.Fatal(err)
	}
	n.write(t, "conf.d/ballast.toml", b.String())
	n.serveFacade(t)
	n.hosts(t, snippet.Hosts{Registry: "ghcr.io"})
	n.serve(t)
	return n
}

// run runs the doctor.
func (n *machine) run(t *testing.T) node.Findings {
	t.Helper()
	d := n.doctor
	if d.Node, d.NodeError = node.Look(t.Context(), node.Options{
		Distro: node.Plain, Config: d.Config, Main: filepath.Join(n.dir, "config.toml"), Version: n.version,
	}); d.Node == nil {
		t.Fatal(d.NodeError)
	}
	d.Node.Unit = "k3s-agent"
	if n.unknown != nil {
		d.Node.Unknown = n.unknown
	}
	return d.Run(t.Context())
}

// serveFacade serves the facade of a running daemon.
func (n *machine) serveFacade(t *testing.T) {
	t.Helper()
	cfg := n.doctor.Config
	if err := os.Mkdir(cfg.Root, 0o700); err != nil {
		t.Fatal(err)
	}
	var err error
	if n.keys, err = facadetls.Open(cfg.Root, facadetls.Options{}); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Facade.Listen = l.Addr().String()
	server := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if n.hangs.Load() {
			<-r.Context().Done()
		}
	}), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(tls.NewListener(l, n.keys.Config())) // until the end of the test
	}()
	t.Cleanup(func() {
		server.Close()
		<-done
	})
}

// serve serves the admin socket of a running daemon.
func (n *machine) serve(t *testing.T) {
	t.Helper()
	cfg, dir := n.doctor.Config, n.dir
	s, err := store.Open(cfg.Root, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	n.health = wire.Health{
		Version: wire.Version{Version: testVersion}, Started: time.Now(), Dirs: map[string]wire.Dir{},
		Address: cfg.Address, Facade: cfg.Facade.Listen, Show: "stubs",
		FacadeHealth: wire.FacadeHealth{Keys: new(wire.FacadeKeys), Manager: true, Held: true},
		Lazy:         wire.LazyHealth{Mode: "auto", Dir: filepath.Join(dir, "lazy"), Mounted: true, Keeper: "process", Kept: true, Passthrough: true, Resend: true},
	}
	for _, name := range append([]string{"."}, rootParts...) {
		path := filepath.Join(cfg.Root, name)
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
		dev, err := device(path)
		if err != nil {
			t.Fatal(err)
		}
		if name == "." {
			name = "root"
		}
		n.health.Dirs[name] = wire.Dir{Path: path, Device: dev}
	}
	h := &admin.Handler{
		Store: s, Metrics: http.NotFoundHandler(), Node: answers{machine: n}, Mounts: mounted{machine: n},
	}
	l, err := net.Listen("unix", cfg.AdminAddress)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h.Routes()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l) // until stop
	}()
	n.stop = func() {
		server.Close()
		l.Close() // Serve may not have started yet
		<-done
	}
	t.Cleanup(n.stop)
}

// silence makes the daemon hang.
func (n *machine) silence(t *testing.T) {
	t.Helper()
	n.stop()
	if err := os.RemoveAll(n.doctor.Config.AdminAddress); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", n.doctor.Config.AdminAddress)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

func (n *machine) write(t *testing.T, name, s string) {
	t.Helper()
	path := filepath.Join(n.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(s), 0o644); err != nil {
		t.Fatal(err)
	}
}

// closed has setup say that it has closed a registry.
func (n *machine) closed(registry string) {
	n.doctor.Config.Facade.Closed = []config.HostsFile{{File: filepath.Join(n.dir, "certs.d", registry, "hosts.toml"), Digest: digest.FromString("of setup")}}
}

const dropin = "conf.d/ballast.toml"

// On a healthy node the only finding is that containerd itself does not run.
// answers are the facts of a machine.
type answers struct {
	admin.Node // nil
	*machine
}

func (a answers) Health(context.Context) (wire.Health, error) { return a.health, nil }
func (a answers) Touch()                                      {}

// mounted are the mounts of a machine.
type mounted struct {
	admin.Mounts // nil
	*machine
}

func (m mounted) List(context.Context) ([]wire.Mount, error) { return m.mounts, nil }

func TestHealthyNode(t *testing.T) {
	findings := newNode(t).run(t)
	for _, f := range findings {
		if f.Status != node.OK && f.Check != "containerd" {
			t.Errorf("%+v", f)
		}
	}
	if len(findings.Failed()) > 0 {
		t.Error("a healthy node fails")
	}
}

// TestHungDisk checks a root whose disk hangs: the checks that need no disk are made, and the others do not wait for
// it.
func TestHungDisk(t *testing.T) {
	n := newNode(t)
	disk := disktest.New(t, "ext4", t.TempDir(), 64<<20)
	n.doctor.Touch = func(string) error { return durable.Touch(disk.Dir) }
	n.doctor.Probe = func(string) error { return durable.Touch(disk.Dir) }
	n.doctor.ProbeUsers = n.doctor.Probe
	n.edit(t, dropin, "ballastd.sock", "other.sock")
	disk.Hang()
	defer disk.Resume()
	found := map[string]node.Finding{}
	for _, f := range n.run(t) {
		found[f.Check] = f
	}
	if f := found["disk"]; f.Status != node.Fail || !strings.Contains(f.Message, "hangs") {
		t.Errorf("the disk: %+v", f)
	}
	if f := found["proxy_plugins"]; f.Status != node.Fail || !strings.Contains(f.Message, "other.sock") {
		t.Errorf("the doctor does not go on: %+v", f)
	}
}

// TestSilentDaemon checks a daemon that hangs: the port of the facade is its own, and who does not wait for it gets no
// findings about the rest.
func TestSilentDaemon(t *testing.T) {
	n := newNode(t)
	n.silence(t)
	for _, f := range n.run(t) {
		if f.Check == "facade" {
			t.Errorf("%+v", f)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if findings := n.doctor.Run(ctx); len(findings) != 1 {
		t.Errorf("interrupted: %+v", findings)
	}
}

// TestReadOnlyDisk checks a root that became read-only: that is the only problem, and no feature of the kernel.
func TestReadOnlyDisk(t *testing.T) {
	n := newNode(t)
	root := n.doctor.Config.Root
	if err := errors.Join(unix.Mount(root, root, "", unix.MS_BIND, ""), unix.Mount("", root, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(root, unix.MNT_DETACH)
	n.doctor.Touch, n.doctor.Probe, n.doctor.ProbeUsers = durable.Touch, durable.Touch, durable.Touch
	for _, f := range n.run(t) {
		switch {
		case f.Check == "disk":
			if f.Status != node.Fail || !strings.Contains(f.Message, root+" cannot be written: read-only file system") {
				t.Errorf("the disk: %+v", f)
			}
			root = "" // found
		case f.Status != node.OK && f.Check != "containerd":
			t.Errorf("%+v", f)
		}
	}
	if root != "" {
		t.Error("the disk is not named")
	}
}

// TestLocalPullNeedsFacade makes CRI pull without the transfer service, as production nodes often do: models
// need a facade there too.
func TestLocalPullNeedsFacade(t *testing.T) {
	n := newNode(t)
	n.write(t, "conf.d/zz.toml", `version = 3
[plugins."io.containerd.cri.v1.images"]
  use_local_image_pull = true
  discard_unpacked_layers = true
  disable_snapshot_annotations = false
  max_concurrent_downloads = 8
`)

	for _, f := range n.run(t) {
		if f.Status != node.OK && f.Check != "containerd" {
			t.Errorf("%+v", f)
		}
	}
}

func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		name   string
		spoil  func(*testing.T, *machine)
		check  string
		status node.Status
		says   string // part of the message
		fix    string // part of the fix
	}{
		{"daemon down", func(_ *testing.T, n *machine) { n.stop() },
			"daemon", node.Fail, "is not running", "systemctl enable --now ballastd"},
		{"daemon that hangs", func(t *testing.T, n *machine) { n.silence(t) },
			"daemon", node.Fail, "does not answer: it hangs, or its disk does", "systemctl restart ballastd"},
		{"the rest, while the daemon hangs", func(t *testing.T, n *machine) {
			n.silence(t)
			n.edit(t, dropin, "ballastd.sock", "other.sock")
		}, "proxy_plugins", node.Fail, "other.sock", "[proxy_plugins.ballast] type = \"snapshot\", address = "},
		{"never set up", func(_ *testing.T, n *machine) { n.stop(); n.doctor.Fresh = true },
			"daemon", node.Fail, "was never set up", "ballast setup"},
		{"daemon of another version", func(_ *testing.T, n *machine) { n.health.Version.Version = "1.0.0" },
			"daemon", node.Warn, "ballastd is 1.0.0, this command is 1.2.3", "restart ballastd"},
		{"daemon at another socket", func(_ *testing.T, n *machine) { n.health.Address = "/elsewhere.sock" },
			"daemon", node.Fail, "/elsewhere.sock", "restart ballastd"},
		{"mirror that lies", func(_ *testing.T, n *machine) {
			n.health.Mirrors = []wire.Mirror{{Address: "http://10.0.0.9/v2", Wrong: 1, Shunned: map[string]time.Time{"ghcr.io": time.Now().Add(time.Hour)}}}
		}, "mirrors", node.Fail, "http://10.0.0.9/v2 sent wrong bytes of models of ghcr.io", "repair its cache"},
		{"mirror that is down", func(_ *testing.T, n *machine) {
			n.health.Mirrors = []wire.Mirror{{Address: "http://10.0.0.9/v2", Last: &wire.Left{Reason: "slow", Error: "7 bytes in 5s"}, Resting: map[string]time.Time{"ghcr.io": time.Now().Add(time.Minute)}}}
		}, "mirrors", node.Warn, "http://10.0.0.9/v2, a mirror of ghcr.io, does not answer", "check that it runs"},
		{"mount that is gone", func(_ *testing.T, n *machine) {
			n.mounts = []wire.Mount{{Dir: "/srv/m", Name: "ghcr.io/a/b:1", Created: time.Now().Add(-time.Hour)}}
		}, "mounts", node.Warn, "/srv/m is not mounted, but still keeps ghcr.io/a/b:1", "ballast unmount /srv/m"},
		{"mount that cannot be read", func(t *testing.T, n *machine) {
			good := t.TempDir()
			n.mounts = []wire.Mount{{Dir: good, Name: "ghcr.io/a/b:1", Mounted: true}, {Dir: good + "/gone", Name: "ghcr.io/a/c:1", Mounted: true}}
		}, "mounts", node.Fail, "ghcr.io/a/c:1 at ", "/gone && ballast mount ghcr.io/a/c:1 /"},
		{"metadata set aside", func(_ *testing.T, n *machine) { n.health.Snapshots.Aside = []string{"/r/metadata.db.damaged-1"} },
			"snapshots", node.Warn, "was renamed", "rm /r/metadata.db.damaged-1"},
		{"unknown directories", func(_ *testing.T, n *machine) { n.health.Snapshots.Unknown = 2 },
			"snapshots", node.Warn, "2 directories", "restart or remove"},
		{"snapshot shows zeros", func(_ *testing.T, n *machine) {
			n.health.Snapshots.Problems = []wire.SnapshotProblem{{Snapshot: "7", Path: "model.gguf", Problem: "reads as zeros"}}
		}, "snapshots", node.Fail, "snapshot 7, model.gguf: reads as zeros", "ballast verify --repair"},
		{"facade elsewhere", func(_ *testing.T, n *machine) { n.health.Facade = "127.0.0.1:1" },
			"daemon", node.Fail, "facade.listen", "restart ballastd"},
		{"port of the facade taken", func(_ *testing.T, n *machine) {
			n.health.FacadeHealth.Error = "address already in use"
			n.health.FacadeHealth.Owner = &wire.Owner{Address: "127.0.0.1:5757", UID: 65534, PID: 4321, Command: "squat -x"}
		}, "facade", node.Fail, "process 4321 (squat -x), uid 65534, at 127.0.0.1:5757 uses its port", "ps -fp 4321"},
		{"port of the facade taken, unseen by the daemon", func(_ *testing.T, n *machine) {
			n.health.FacadeHealth.Error = "address already in use"
			n.health.FacadeHealth.Owner = &wire.Owner{Address: n.doctor.Config.Facade.Listen}
		}, "facade", node.Fail, fmt.Sprintf("process %d (%s", os.Getpid(), os.Args[0]), fmt.Sprintf("ps -fp %d", os.Getpid())},
		{"facade without keys", func(_ *testing.T, n *machine) { n.health.FacadeHealth.Error = "no space left on device" },
			"facade", node.Fail, "no space left", "journalctl"},
		{"port taken, daemon down", func(_ *testing.T, n *machine) { n.stop() },
			"facade", node.Fail, "uid 0, at 127.0.0.1:", "end it"},
		{"facade by plain HTTP", func(_ *testing.T, n *machine) { n.health.FacadeHealth.Plain = true },
			"facade", node.Warn, "every user of this node", "facade.insecure_plain_http"},
		{"port not held", func(_ *testing.T, n *machine) { n.health.FacadeHealth.Held = false },
			"facade", node.Warn, "is not reserved", "systemctl enable ballastd.socket"},
		{"other port held", func(_ *testing.T, n *machine) {
			n.health.FacadeHealth.Held, n.health.FacadeHealth.HeldElsewhere = false, "127.0.0.1:1"
		}, "facade", node.Warn, "reserves 127.0.0.1:1", "ListenStream=127.0.0.1:"},
		{"CA lost", func(_ *testing.T, n *machine) {
			n.health.FacadeHealth.Keys = &wire.FacadeKeys{Remade: time.Now(), Why: "authority.pem is damaged"}
		}, "facade", node.Warn, "authority.pem is damaged", "stay as they are"},
		{"hosts.toml without keys", func(t *testing.T, n *machine) {
			var b strings.Builder
			if err := (snippet.Hosts{Registry: "ghcr.io", Facade: n.doctor.Config.Facade.Listen}).Write(&b); err != nil {
				t.Fatal(err)
			}
			n.write(t, "certs.d/ghcr.io/hosts.toml", b.String())
		}, "hosts.toml", node.Fail, "uses plain HTTP", "ballast config hosts ghcr.io --write --force --hosts-dir "},
		{"hosts.toml believes everybody", func(t *testing.T, n *machine) {
			n.edit(t, "certs.d/ghcr.io/hosts.toml", "  client =", "  skip_verify = true\n  client =")
		}, "hosts.toml", node.Fail, "accepts any process", "skip_verify"},
		{"hosts.toml with keys and http://", func(t *testing.T, n *machine) {
			n.edit(t, "certs.d/ghcr.io/hosts.toml", "[host.\"https://", "[host.\"http://")
			n.edit(t, "certs.d/ghcr.io/hosts.toml", "  client =", "  skip_verify = true\n  client =")
		}, "hosts.toml", node.Fail, "ghcr.io/hosts.toml names the facade with http://", "ballast config hosts ghcr.io --write --force --hosts-dir "},
		{"keys that hosts.toml names are not there", func(t *testing.T, n *machine) {
			n.edit(t, "certs.d/ghcr.io/hosts.toml", "/tls/ca.pem", "/tls/gone.pem")
		}, "hosts.toml", node.Fail, "unable to read CA cert", "ballast config hosts ghcr.io --write --force"},
		{"keys of another root in hosts.toml", func(t *testing.T, n *machine) {
			if _, err := facadetls.Open(n.dir, facadetls.Options{}); err != nil {
				t.Fatal(err)
			}
			n.edit(t, "certs.d/ghcr.io/hosts.toml", "/root/tls/", "/tls/")
		}, "hosts.toml", node.Fail, "unknown authority", "ballast config hosts ghcr.io --write --force"},
		{"facade hangs", func(_ *testing.T, n *machine) { n.hangs.Store(true) },
			"hosts.toml", node.Fail, "did not answer within", "load of the node"},
		{"root other than configured", func(_ *testing.T, n *machine) {
			n.health.Dirs["root"] = wire.Dir{Path: n.dir, Device: n.health.Dirs["root"].Device}
		}, "root", node.Fail, "its configuration has root", "restart ballastd"},
		{"objects on another file system", func(t *testing.T, n *machine) {
			n.stop() // it would not start with it
			mountTmpfs(t, filepath.Join(n.doctor.Config.Root, "objects"))
		}, "root", node.Fail, "is on another file system than the root", "one file system"},
		{"file system mounted over a directory of objects", func(t *testing.T, n *machine) {
			mountTmpfs(t, filepath.Join(n.doctor.Config.Root, "objects/sha256/ab"))
		}, "root", node.Fail, "objects/sha256/ab", "umount "},
		{"file system mounted over the root", func(t *testing.T, n *machine) { mountTmpfs(t, n.doctor.Config.Root) },
			"root", node.Fail, "mounted over", "unmount"},
		{"kernel without data-only layers", func(_ *testing.T, n *machine) {
			n.doctor.Probe = func(string) error { return errors.New("invalid argument") }
		}, "kernel", node.Warn, "hard links: invalid argument", "Linux 6.5"},
		{"kernel without data-only layers, stubs wanted", func(_ *testing.T, n *machine) {
			n.doctor.Probe = func(string) error { return errors.New("invalid argument") }
			n.doctor.Config.Snapshot.Show = config.ShowStubs
		}, "kernel", node.Fail, "needs them", `snapshot.show = "auto"`},
		{"kernel mended, daemon not restarted", func(_ *testing.T, n *machine) { n.health.Show = "links" },
			"kernel", node.Warn, "hard links", "restart ballastd"},
		{"no FUSE", func(_ *testing.T, n *machine) {
			n.health.Lazy = wire.LazyHealth{Mode: "auto", Why: "open /dev/fuse: no such file"}
		},
			"lazy", node.Warn, "open /dev/fuse: no such file", "modprobe fuse"},
		{"lazy mount gone", func(_ *testing.T, n *machine) { n.health.Lazy.Mounted = false },
			"lazy", node.Fail, "was unmounted", "restart ballastd"},
		{"holder dead", func(_ *testing.T, n *machine) { n.health.Lazy.Kept = false },
			"lazy", node.Warn, "process does not answer", "restart ballastd"},
		{"no holder wanted", func(_ *testing.T, n *machine) {
			n.health.Lazy.Kept, n.health.Lazy.Keeper = false, "none"
			n.doctor.Config.Lazy.Holder = config.HolderNone
		}, "lazy", node.Warn, `lazy.holder = "none"`, `lazy.holder = "auto"`},
		{"kernel without resend", func(_ *testing.T, n *machine) { n.health.Lazy.Resend = false },
			"lazy", node.Warn, "hang until the reader is killed", "Linux 6.9"},
		{"kernel without passthrough", func(_ *testing.T, n *machine) { n.health.Lazy.Passthrough = false },
			"lazy", node.Warn, "through ballastd", "Linux 6.9"},
		{"kernel that cannot map users", func(_ *testing.T, n *machine) {
			n.doctor.ProbeUsers = func(string) error { return errors.New("invalid argument") }
		}, "user namespaces", node.Warn, "do not start: invalid argument", "Linux 6.3"},
		{"lazy mount that cannot be mapped", func(_ *testing.T, n *machine) { n.health.Lazy.Users = "this kernel" },
			"user namespaces", node.Warn, "when their model is complete, not before: this kernel", "Linux 6.12"},
		{"lazy mount that shall not be mapped", func(_ *testing.T, n *machine) {
			n.health.Lazy.Users, n.doctor.Config.Lazy.IDMap = "this kernel", false
		}, "user namespaces", node.Warn, "when their model is complete", "lazy.idmap = true"},
		{"containerd that does not map users", func(_ *testing.T, n *machine) { n.health.ContainerdVersion = "1.7.35" },
			"user namespaces", node.Warn, "1.7.35 cannot id-map mounts", "containerd 2.0"},
		{"containerd that does not map volumes", func(_ *testing.T, n *machine) { n.health.ContainerdVersion = "v2.1.6" },
			"user namespaces", node.Warn, "belong to nobody", "containerd 2.1.7"},
		{"drop-in of an earlier version", func(t *testing.T, n *machine) { n.edit(t, dropin, `capabilities = ["remap-ids"]`, "") },
			"user namespaces", node.Warn, "copies the root file system", `capabilities = ["remap-ids"]`},
		{"paused", func(_ *testing.T, n *machine) { n.health.Lazy.Paused = true },
			"lazy", node.Warn, "are paused", "ballast resume"},
		{"table lost", func(_ *testing.T, n *machine) { n.health.Doubts.Unresolved = []wire.Ref{{Name: "snapshot/7"}} },
			"store", node.Fail, "snapshot/7", "ballast verify --repair"},
		{"damaged files", func(_ *testing.T, n *machine) { n.health.Doubts.Damaged = []string{"/root/damaged/ab"} },
			"store", node.Fail, "/root/damaged/ab", "ballast verify --repair"},
		{"database set aside", func(_ *testing.T, n *machine) {
			n.health.Doubts.Rebuilt, n.health.Doubts.SetAside = time.Now(), []string{"/root/store.db.damaged-1"}
		}, "store", node.Warn, "/root/store.db.damaged-1", "rm /root/store.db.damaged-1"},
		{"database lost", func(_ *testing.T, n *machine) { n.health.Doubts.Rebuilt = time.Now() },
			"store", node.Warn, "the database was lost", "pin again"},
		{"not hashed yet", func(_ *testing.T, n *machine) { n.health.Doubts.Unrecorded = 1 << 30 },
			"store", node.Warn, "1.1 GB", "in the background"},
		{"no space", func(_ *testing.T, n *machine) { n.doctor.Config.Fetch.Reserve = 1 << 62 },
			"space", node.Fail, "nothing is downloaded", "ballast gc"},
		{"little space", func(_ *testing.T, n *machine) { n.doctor.Config.GC.High = 0 },
			"space", node.Warn, "gc.high", "ballast gc"},

		{"configuration is no TOML", func(t *testing.T, n *machine) { n.write(t, "config.toml", "version = \n") },
			"containerd config", node.Fail, "config.toml", "containerd config dump"},
		{"drop-in not imported", func(t *testing.T, n *machine) { n.write(t, "config.toml", "version = 4\n") },
			"proxy_plugins", node.Fail, `no proxy plugin of type "snapshot"`, "write imports = ["},
		{"drop-in and no main file", func(t *testing.T, n *machine) {
			if err := os.Remove(filepath.Join(n.dir, "config.toml")); err != nil {
				t.Fatal(err)
			}
		},
			"proxy_plugins", node.Fail, `no proxy plugin of type "snapshot"`, `printf 'version = 3\nimports = ["`},
		{"no drop-in", func(t *testing.T, n *machine) { n.write(t, dropin, "version = 4\n") },
			"proxy_plugins", node.Fail, `no proxy plugin of type "diff"`, "conf.d && ballast config containerd > "},
		{"drop-in without the differ", func(t *testing.T, n *machine) {
			n.edit(t, dropin, "[proxy_plugins.ballast-diff]\n  type = \"diff\"", "[proxy_plugins.other]\n  type = \"snapshot\"")
		},
			"proxy_plugins", node.Fail, `no proxy plugin of type "diff"`, "conf.d && ballast config containerd > "},
		{"plugin at another socket", func(t *testing.T, n *machine) { n.edit(t, dropin, "ballastd.sock", "other.sock") },
			"proxy_plugins", node.Fail, "other.sock", "[proxy_plugins.ballast] type = \"snapshot\", address = "},
		{"no exports.root", func(t *testing.T, n *machine) { n.edit(t, dropin, "    root = ", "    # root = ") },
			"proxy_plugins", node.Fail, "no exports.root", "[proxy_plugins.ballast.exports] root = "},
		{"exports.root elsewhere", func(t *testing.T, n *machine) { n.edit(t, dropin, `    root = "`, `    root = "/x`) },
			"proxy_plugins", node.Fail, "ballastd has root", "[proxy_plugins.ballast.exports] root = "},
		{"exports.root on another file system", func(t *testing.T, n *machine) {
			other := filepath.Join(n.dir, "other")
			mountTmpfs(t, other)
			n.edit(t, dropin, fmt.Sprintf("    root = %q", n.doctor.Config.Root), fmt.Sprintf("    root = %q", other))
		}, "proxy_plugins", node.Fail, "on another file system", "[proxy_plugins.ballast.exports] root = "},
		{"no annotations", func(t *testing.T, n *machine) { n.edit(t, dropin, "    enable_remote", "    # enable_remote") },
			"proxy_plugins", node.Warn, "enable_remote_snapshot_annotations", `= "true"`},
		{"differ missing from diff-service", func(t *testing.T, n *machine) {
			n.edit(t, dropin, `default = ["ballast-diff", "walking"]`, `default = ["walking"]`)
		}, "diff-service", node.Fail, "image volumes", `default = ["ballast-diff", "walking"]`},
		{"no diff-service order", func(t *testing.T, n *machine) {
			n.edit(t, dropin, `default = ["ballast-diff", "walking"]`, ``)
		}, "diff-service", node.Fail, "image volumes", `default = ["ballast-diff", "walking"]`},
		{"nobody after us", func(t *testing.T, n *machine) {
			n.edit(t, dropin, `["ballast-diff", "walking"]`, `["ballast-diff"]`)
		}, "diff-service", node.Fail, "ordinary images", `default = ["ballast-diff", "walking"]`},
		{"walking first", func(t *testing.T, n *machine) {
			n.edit(t, dropin, `["ballast-diff", "walking"]`, `["walking", "ballast-diff"]`)
		}, "diff-service", node.Fail, "walking before", `default = ["ballast-diff", "walking"]`},
		{"differ missing from unpack_config", func(t *testing.T, n *machine) { n.edit(t, dropin, "  differ = \"ballast-diff\"\n", "") },
			"unpack_config", node.Fail, "has no differ", `in that entry of [[plugins."io.containerd.transfer.v1.local".unpack_config]]: differ = "ballast-diff"`},
		{"wrong differ in unpack_config", func(t *testing.T, n *machine) { n.edit(t, dropin, `differ = "ballast-diff"`, `differ = "walking"`) },
			"unpack_config", node.Fail, `differ = "walking"`, `differ = "ballast-diff"`},
		{"entry missing from unpack_config", func(t *testing.T, n *machine) {
			n.edit(t, dropin, "  snapshotter = \"ballast\"\n  differ", "  snapshotter = \"native\"\n  differ")
		}, "unpack_config", node.Fail, "no entry for ballast", `snapshotter = "ballast"`},
		{"first entry wins", func(t *testing.T, n *machine) {
			n.edit(t, dropin, `snapshotter = "overlayfs"`, `snapshotter = "ballast"`)
		},
			"unpack_config", node.Fail, `differ = "walking"`, `differ = "ballast-diff"`},
		{"overlayfs lost", func(t *testing.T, n *machine) {
			n.edit(t, dropin, `snapshotter = "overlayfs"`, `snapshotter = "native"`)
		},
			"unpack_config", node.Warn, "no entry for overlayfs", `snapshotter = "overlayfs"`},
		{"no pod uses it", func(t *testing.T, n *machine) {
			n.edit(t, dropin, "cri.v1.images\"]\n  snapshotter = \"ballast\"", "cri.v1.images\"]\n  snapshotter = \"overlayfs\"")
		}, "cri", node.Warn, "no pod uses ballast", "--runtime-handler"},
		{"config_path not set", func(t *testing.T, n *machine) { n.edit(t, dropin, "    config_path = ", "    # config_path = ") },
			"cri", node.Fail, "find no hosts.toml", `config_path = "/etc/containerd/certs.d"`},
		{"config_path is a list", func(t *testing.T, n *machine) { n.edit(t, dropin, `certs.d"`, `certs.d:/etc/docker/certs.d"`) },
			"cri", node.Fail, "find no hosts.toml", "/certs.d"},
		{"mirrors", func(t *testing.T, n *machine) {
			n.write(t, "conf.d/zz.toml", "version = 4\n[plugins.\"io.containerd.cri.v1.images\".registry.mirrors.\"docker.io\"]\nendpoint = [\"https://m\"]\n")
		}, "cri", node.Fail, "registry.mirrors", "hosts.toml"},
		{"containerd down", func(*testing.T, *machine) {},
			"containerd", node.Warn, "does not answer", "systemctl start k3s-agent"},

		{"hosts.toml fails open", func(t *testing.T, n *machine) {
			n.edit(t, "certs.d/ghcr.io/hosts.toml", `capabilities = ["pull", "push"]`, ``)
		}, "hosts.toml", node.Fail, "ghcr.io/hosts.toml fails open: while the facade does not answer, tags resolve at https://ghcr.io", `capabilities = ["pull", "push"]`},
		{"second mirror resolves", func(t *testing.T, n *machine) {
			n.edit(t, "certs.d/ghcr.io/hosts.toml", `[host."http`, "[host.\"https://mirror.example\"]\n[host.\"http")
		}, "hosts.toml", node.Fail, "tags resolve at https://mirror.example", `capabilities`},
		{"facade may not resolve", func(t *testing.T, n *machine) {
			n.edit(t, "certs.d/ghcr.io/hosts.toml", `["pull", "resolve"]`, `["pull"]`)
		}, "hosts.toml", node.Fail, "no host has the capability", "ballast config hosts ghcr.io --write --force --hosts-dir "},
		{"hosts.toml cannot be read", func(t *testing.T, n *machine) {
			n.edit(t, "certs.d/ghcr.io/hosts.toml", `"resolve"]`, `"resolve", "fly"]`)
		}, "hosts.toml", node.Fail, "does not use it for tags", "ballast config hosts ghcr.io --write --force --hosts-dir "},
		{"host with port fails open", func(t *testing.T, n *machine) {
			n.write(t, "certs.d/reg.example_5000_/hosts.toml", "[host.\"http://"+n.doctor.Config.Facade.Listen+"\"]\n")
		}, "hosts.toml", node.Fail, "tags resolve at https://reg.example:5000", `server = "https://reg.example:5000"`},
		{"plain HTTP registry fails open", func(t *testing.T, n *machine) {
			n.write(t, "certs.d/127.0.0.1:5001/hosts.toml", "server = \"http://127.0.0.1:5001\"\n[host.\"http://"+n.doctor.Config.Facade.Listen+"\"]\n")
		}, "hosts.toml", node.Fail, "tags resolve at http://127.0.0.1:5001", `server = "http://127.0.0.1:5001"`},
		{"host with port in another directory", func(t *testing.T, n *machine) {
			n.hosts(t, snippet.Hosts{Registry: "reg.example:5000"})
			n.write(t, "certs.d/reg.example_5000_/ca.crt", "")
		}, "hosts.toml", node.Fail, "certs.d/reg.example_5000_, so models of reg.example:5000 arrive unconverted", "/hosts.toml "},
		{"_default open", func(t *testing.T, n *machine) {
			n.hosts(t, snippet.Hosts{Registry: snippet.DefaultRegistry, Open: true})
		}, "hosts.toml", node.Warn, "_default/hosts.toml is open", "ballast config hosts _default --write --force --hosts-dir "},
		{"no hosts.toml", func(t *testing.T, n *machine) {
			if err := os.RemoveAll(filepath.Join(n.dir, "certs.d")); err != nil {
				t.Fatal(err)
			}
			n.doctor.HostsDirs = []string{"/nowhere/certs.d", filepath.Join(n.dir, "certs.d")} // containerd also names the last one
		}, "hosts.toml", node.Warn, "certs.d, /nowhere/certs.d uses the facade", "ballast config hosts REGISTRY --write --hosts-dir "},
		{"hosts.toml of setup gone", func(t *testing.T, n *machine) {
			n.closed("quay.io")
		}, "hosts.toml", node.Fail, "quay.io/hosts.toml of ballast setup is gone, so models of quay.io arrive unconverted", "ballast doctor --fix"},
		{"hosts.toml of setup replaced", func(t *testing.T, n *machine) {
			n.closed("quay.io")
			n.write(t, "certs.d/quay.io/hosts.toml", "server = \"https://quay.io\"\n")
		}, "hosts.toml", node.Fail, "quay.io/hosts.toml was replaced, and does not lead to the facade", "ballast setup --force"},
		{"hosts.toml of setup replaced by dfinit", func(t *testing.T, n *machine) {
			n.closed("quay.io")
			n.write(t, "certs.d/quay.io/hosts.toml", "[host.\"http://127.0.0.1:4001\"]\n")
		}, "hosts.toml", node.Fail, "quay.io/hosts.toml was replaced by Dragonfly", "take quay.io out of what Dragonfly writes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			tt.spoil(t, n)
			findings := n.run(t)
			for _, f := range findings {
				if f.Check == tt.check && f.Status == tt.status && strings.Contains(f.Message, tt.says) && strings.Contains(f.Fix, tt.fix) {
					return
				}
			}
			t.Errorf("no finding %q %s with %q, fixed by %q, in:\n%+v", tt.check, tt.status, tt.says, tt.fix, findings)
		})
	}
}

// TestKeylessProgram: a rule for keyless signatures needs the program that verifies them, beside this one.
func TestKeylessProgram(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(t)
	n.doctor.Config.Verify.Rule = []config.VerifyRule{{Match: "registry.example/*", Mode: config.VerifyEnforce, Any: []config.Signer{{TrustedRoot: "root.json", Issuer: "i", Subject: "s"}}}}
	missing := func() bool {
		return slices.ContainsFunc(n.run(t), func(f node.Finding) bool {
			return f.Check == "signatures" && f.Status == node.Fail && strings.Contains(f.Message, "install it in "+filepath.Dir(self))
		})
	}
	if !missing() {
		t.Error("doctor does not say that it is missing")
	}
	program := filepath.Join(filepath.Dir(self), keyless.Name)
	if err := os.WriteFile(program, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(program)
	if missing() {
		t.Error("doctor says that it is missing, and it is there")
	}
}

// Registries that a rule requires signatures of are reached through the facade only.
func TestSignaturesOfOpenRegistries(t *testing.T) {
	signed := func(match string) config.VerifyRule {
		return config.VerifyRule{Match: match, Mode: config.VerifyEnforce, Any: []config.Signer{{Type: config.SignerCosign, Key: "k"}}}
	}
	off := func(match string) config.VerifyRule { return config.VerifyRule{Match: match, Mode: config.VerifyOff} }
	for _, tt := range []struct {
		name  string
		rules []config.VerifyRule
		hosts []snippet.Hosts
		open  string // a registry with a hosts.toml without the facade
		want  string // empty: no finding
	}{
		{"through the facade", []config.VerifyRule{signed("ghcr.io/team/*")}, nil, "", ""},
		{"without hosts.toml", []config.VerifyRule{signed("quay.io/team/*")}, nil, "", "can ask quay.io"},
		{"all, some without hosts.toml", []config.VerifyRule{signed("*")}, nil, "", "can ask registries without"},
		{"a path in all, some without hosts.toml", []config.VerifyRule{signed("*/team/*")}, nil, "", "can ask registries without"},
		{"all, through _default", []config.VerifyRule{signed("*")}, []snippet.Hosts{{Registry: snippet.DefaultRegistry}}, "", ""},
		{"all, but _default is open", []config.VerifyRule{signed("*")}, []snippet.Hosts{{Registry: snippet.DefaultRegistry, Open: true}}, "", "can ask registries without"},
		{"all, but not in every directory", []config.VerifyRule{signed("*")}, []snippet.Hosts{{Registry: snippet.DefaultRegistry}}, "", "can ask registries without"},
		{"all, but one is open", []config.VerifyRule{signed("*")}, []snippet.Hosts{{Registry: snippet.DefaultRegistry}}, "quay.io", "can ask quay.io"},
		{"all, and what Spegel has moved away", []config.VerifyRule{signed("*")}, []snippet.Hosts{{Registry: snippet.DefaultRegistry}}, hostsfile.SpegelBackup, ""},
		{"all but the open one", []config.VerifyRule{off("quay.io/*"), signed("*")}, []snippet.Hosts{{Registry: snippet.DefaultRegistry}}, "quay.io", ""},
		{"all but a part of the open one", []config.VerifyRule{off("quay.io/free/*"), signed("*")}, []snippet.Hosts{{Registry: snippet.DefaultRegistry}}, "quay.io", "can ask quay.io"},
		{"a pattern that can be a host", []config.VerifyRule{signed("*team*")}, nil, "", "can ask registries without"},
		{"hosts with a beginning", []config.VerifyRule{signed("1234.dkr.ecr.*.amazonaws.com/team/*")}, nil, "", "can ask registries such as 1234.dkr.ecr.*.amazonaws.com without"},
		{"hosts with a beginning, through _default", []config.VerifyRule{signed("registry-*/team/*")}, []snippet.Hosts{{Registry: snippet.DefaultRegistry}}, "", ""},
		{"by another name", []config.VerifyRule{signed("index.docker.io")}, []snippet.Hosts{{Registry: snippet.DefaultRegistry}}, "docker.io", "can ask docker.io"},
		{"no signatures", []config.VerifyRule{{Match: "*", Mode: config.VerifyEnforce, DenyCode: true}, {Match: "*", Mode: config.VerifyWarn, Any: signed("*").Any}}, nil, "quay.io", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			n.doctor.Config.Verify.Rule = tt.rules
			for _, h := range tt.hosts {
				n.hosts(t, h)
			}
			if tt.name == "all, but not in every directory" {
				n.doctor.HostsDirs = []string{filepath.Join(n.dir, "other")}
				n.write(t, "other/_default/hosts.toml", "server = \"https://mirror.example\"\n")
			}
			if tt.open != "" {
				n.write(t, "certs.d/"+tt.open+"/hosts.toml", "server = \"https://"+tt.open+"\"\n")
			}
			var got []string
			for _, f := range n.run(t) {
				if f.Check == "signatures" && f.Status == node.Fail {
					got = append(got, f.Message)
				}
			}
			if tt.want == "" && got != nil || tt.want != "" && (len(got) != 1 || !strings.Contains(got[0], tt.want)) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// The closed form of _default is healthy.
func TestClosedDefaultIsHealthy(t *testing.T) {
	n := newNode(t)
	n.hosts(t, snippet.Hosts{Registry: snippet.DefaultRegistry})
	for _, f := range n.run(t) {
		if f.Check == "hosts.toml" && (f.Status != node.OK || !strings.Contains(f.Message, "_default")) {
			t.Errorf("%+v", f)
		}
	}
}

// A handler is sufficient for pods.
func TestHandlerSuffices(t *testing.T) {
	n := newNode(t)
	var b strings.Builder
	cfg := n.doctor.Config
	if err := (snippet.Containerd{
		Address: cfg.Address, Root: cfg.Root, Platform: node.HostPlatform(), HostsDir: filepath.Join(n.dir, "certs.d"), RuntimeHandler: "model",
	}).Write(&b); err != nil {
		t.Fatal(err)
	}
	n.write(t, dropin, b.String())
	for _, f := range n.run(t) {
		if f.Status != node.OK && f.Check != "containerd" {
			t.Errorf("%+v", f)
		}
	}
}

func mountTmpfs(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

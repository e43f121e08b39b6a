package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Options are the settings of a Node. The zero value is a node with ballast.
type Options struct {
	// Stock is a node without ballast: containerd with overlayfs.
	Stock bool

	// Config is added to ballastd's configuration, as TOML tables.
	Config string

	// Containerd is added to containerd's configuration, as a drop-in that is read after that of
	// ballast.
	Containerd string

	// Version is the version of containerd, one of Versions; empty means the newest.
	Version string

	// Base is a configuration file of containerd, as shipped by a distribution, to start from.
	// Empty means a file with only the settings that make the node private. It does not work with
	// 1.7, which would replace its tables.
	Base string

	// Edit changes the output of `ballast config containerd`.
	Edit func(string) string

	// Registry is the registry of the node; nil means a new one.
	Registry *Registry

	// Bin is a directory with other builds of ballast and ballastd; empty means those of Binary.
	Bin string

	// Daemons is added to the environment of containerd and of ballastd.
	Daemons []string

	// Wrap is prepended to the command line of ballastd.
	Wrap []string

	// Verbose prints what is started.
	Verbose bool
}

// Node is a machine with containerd, ballastd and a registry.
type Node struct {
	// Dir contains all files of the node. Its path is short.
	Dir      string
	Registry *Registry

	// Containerd and Ballastd are the daemons; Ballastd is nil on a stock node.
	Containerd, Ballastd *Process

	// Facade is the address of the facade, "127.0.0.1:port".
	Facade string

	// FacadeSocket is a listening socket for Facade, held by the test like ballastd.socket; nil:
	// ballastd listens itself.
	FacadeSocket *os.File

	options Options
	version string // of containerd
	tb      TB

	mu        sync.Mutex                   // guards addresses
	addresses map[string]string            // see Upstream
	logins    map[string]map[string]string // see Login
}

// dockerConfig is the file with the node's credentials, written by Login.
const dockerConfig = "docker.json"

// cgroupWarning matches a warning that ctr prints on machines with cgroup v1.
var cgroupWarning = regexp.MustCompile(`time=.*The support for cgroup v1 is deprecated.*\n`)

// StartNode starts a node. Its clean-up stops the node, and fails the test if a mount is left.
func StartNode(t TB, o Options) *Node {
	t.Helper()
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatalf("%v", err)
	}
	if err := os.Chmod(dir, passable); err != nil {
		t.Fatalf("%v", err)
	}
	n := &Node{Dir: dir, Registry: o.Registry, options: o, version: o.Version, tb: t}
	if n.version == "" {
		n.version = defaultVersion(t)
	}
	t.Cleanup(func() { n.clean(t) })
	for _, d := range []string{"certs.d", "conf.d", "cni", "logs", "ballast.d", "registry"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatalf("%v", err)
		}
	}
	if n.Registry == nil {
		n.Registry = StartRegistry(t, filepath.Join(dir, "registry"))
	}
	if !o.Stock {
		n.Facade = FreeAddress(t)
		n.writeBallastConfig(t)
	}
	n.Upstream(t, n.Registry.Host, n.Registry.Host)
	n.ConfigureContainerd(t)
	if !o.Stock {
		n.StartBallastd(t)
	}
	n.StartContainerd(t)
	return n
}

// Socket is the path of containerd's socket.
func (n *Node) Socket() string { return filepath.Join(n.Dir, "c.sock") }

// Run is the directory of ballastd's sockets.
func (n *Node) Run() string { return filepath.Join(n.Dir, "run") }

// Root is the directory of ballastd's store and snapshots.
func (n *Node) Root() string { return filepath.Join(n.Dir, "ballast") }

// HostsDir is the directory of containerd's hosts.toml files.
func (n *Node) HostsDir() string { return filepath.Join(n.Dir, "certs.d") }

// ConfigFile is ballastd's configuration file.
func (n *Node) ConfigFile() string { return filepath.Join(n.Dir, "ballast.toml") }

// ContainerdConfigFile is containerd's configuration file.
func (n *Node) ContainerdConfigFile() string { return filepath.Join(n.Dir, "containerd.toml") }

// binary returns the path of the node's ballast or ballastd.
func (n *Node) binary(name string) string {
	if n.options.Bin != "" {
		return filepath.Join(n.options.Bin, name)
	}
	return Binary(n.tb, name)
}

// Env returns the environment in which ballast and ctr use this node, as printed by `make dev`.
func (n *Node) Env() []string {
	return []string{
		"PATH=" + filepath.Dir(n.Tool("ctr")) + ":" + filepath.Dir(n.binary("ballast")) + ":" + os.Getenv("PATH"),
		"BALLAST_CONFIG=" + n.ConfigFile(),
		"CONTAINERD_ADDRESS=" + n.Socket(),
	}
}

// StartContainerd starts or restarts containerd and waits until it answers.
func (n *Node) StartContainerd(t TB) {
	t.Helper()
	env := []string{"PATH=" + filepath.Dir(n.Tool("containerd")) + ":" + filepath.Dir(Runc(t)) + ":" + os.Getenv("PATH")}
	n.Containerd = Start(t, "containerd", filepath.Join(n.Dir, "containerd.log"), append(env, n.options.Daemons...),
		n.Tool("containerd"), "-c", n.ContainerdConfigFile())
	n.Containerd.WaitReady(t, n.answers)
	t.Cleanup(n.stopContainers)
}

// stopContainers removes the remaining containers, so that no shim and no cgroup is left.
func (n *Node) stopContainers() {
	if !n.Containerd.Running() {
		return // already removed; old versions of ctr would wait 10 seconds
	}
	for _, ns := range []string{"default", "k8s.io"} {
		ids, _ := n.tasks(ns) // containerd may have ended
		for _, id := range ids {
			n.Ctr("-n", ns, "tasks", "rm", "-f", id)
		}
	}
}

// StartBallastd starts or restarts ballastd and waits until it answers, also to containerd.
func (n *Node) StartBallastd(t TB) {
	t.Helper()
	n.LaunchBallastd(t)
	if n.Containerd == nil || !n.Containerd.Running() {
		return
	}
	n.Ballastd.WaitReady(t, n.reaches) // containerd reconnects after up to three seconds
}

// LaunchBallastd starts ballastd and waits until it answers.
func (n *Node) LaunchBallastd(t TB) {
	t.Helper()
	argv, env, files := append(slices.Clip(n.options.Wrap), n.binary("ballastd"), "--config", n.ConfigFile()), append(n.Env(), n.options.Daemons...), []*os.File(nil)
	if n.FacadeSocket != nil {
		// As systemd does: LISTEN_PID is the pid, which the shell knows.
		argv = append([]string{"/bin/sh", "-c", `LISTEN_PID=$$ exec "$@"`, "sh"}, argv...)
		env, files = append(env, "LISTEN_FDS=1", "LISTEN_FDNAMES=facade"), []*os.File{n.FacadeSocket}
	}
	n.Ballastd = start(t, "ballastd", filepath.Join(n.Dir, "ballastd.log"), env, files, argv...)
	n.Ballastd.WaitReady(t, func() error {
		for _, s := range []string{"ballastd.sock", "admin.sock"} {
			if err := dial("unix", filepath.Join(n.Run(), s)); err != nil {
				return err
			}
		}
		return dial("tcp", n.Facade)
	})
}

func dial(network, address string) error {
	c, err := net.DialTimeout(network, address, time.Second)
	if err != nil {
		return err
	}
	return c.Close()
}

func (n *Node) writeBallastConfig(t TB) {
	t.Helper()
	n.write(t, "ballast.toml", fmt.Sprintf(`version = 1
root = %q
address = %q
admin_address = %q
[log]
level = "debug"
[containerd]
address = %q
[facade]
listen = %q
[upstream]
hosts_dir = %q
docker_config = %q
[fetch]
reserve = "64MiB"
`, n.Root(), filepath.Join(n.Run(), "ballastd.sock"), filepath.Join(n.Run(), "admin.sock"),
		n.Socket(), n.Facade, filepath.Join(n.Dir, "ballast.d"), filepath.Join(n.Dir, dockerConfig)))
	if n.options.Config != "" {
		n.write(t, "conf.d/extra.toml", "version = 1\n"+n.options.Config)
	}
}

// Upstream configures containerd and ballastd to reach the registry called name in references at
// address, by plain HTTP. containerd's file is the output of `ballast config hosts`, except for the
// address of the registry itself.
func (n *Node) Upstream(t TB, name, address string) {
	t.Helper()
	n.mu.Lock()
	if n.addresses == nil {
		n.addresses = map[string]string{}
	}
	n.addresses[name] = address
	n.mu.Unlock()
	if n.options.Stock {
		n.Direct(t, name, address)
		return
	}
	n.write(t, filepath.Join("ballast.d", name, "hosts.toml"), direct(address))
	out := n.Ballast("config", "hosts", name, "--plain-http")
	if out.Err != nil {
		t.Fatalf("ballast config hosts %s: %v\n%s", name, out.Err, out.Output())
	}
	hosts := strings.ReplaceAll(out.Stdout, "http://"+name, "http://"+address)
	n.write(t, filepath.Join("certs.d", name, "hosts.toml"), hosts)
}

// Direct is Upstream for containerd without the facade.
func (n *Node) Direct(t TB, name, address string) {
	t.Helper()
	n.write(t, filepath.Join("certs.d", name, "hosts.toml"), direct(address))
}

func direct(address string) string { return fmt.Sprintf("server = %q\n", "http://"+address) }

func (n *Node) write(t TB, name, content string) {
	t.Helper()
	p := filepath.Join(n.Dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatalf("%v", err)
	}
	if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
		t.Fatalf("%v", err)
	}
}

// Ctr runs ctr with the node's containerd.
func (n *Node) Ctr(args ...string) Result {
	n.declare(args)
	argv := append([]string{n.Tool("ctr"), "-a", n.Socket()}, WithCgroup(args)...)
	r := Command(context.Background(), nil, argv...)
	r.Stderr = cgroupWarning.ReplaceAllString(r.Stderr, "")
	return r
}

// Ballast runs the ballast command with the node's configuration.
func (n *Node) Ballast(args ...string) Result {
	argv := append([]string{n.binary("ballast"), "--config", n.ConfigFile()}, args...)
	return Command(context.Background(), n.Env(), argv...)
}

// Admin returns the answer to a GET at the admin socket of ballastd.
func (n *Node) Admin(t TB, path string) []byte {
	t.Helper()
	resp, err := n.AdminClient().Get("http://admin" + path)
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer resp.Body.Close()
	p, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v: %.300s", path, resp.Status, err, p)
	}
	return p
}

// Pull runs `ctr images pull` with the node's hosts.toml files. If the pull fails, Pull collects.
func (n *Node) Pull(snapshotter, ref string, flags ...string) Result {
	args := append([]string{"images", "pull", "--snapshotter", snapshotter, "--hosts-dir", n.HostsDir()}, flags...)
	out := n.Ctr(append(args, ref)...)
	if out.Err != nil {
		n.Collect()
	}
	return out
}

// Collect waits for a garbage collection of containerd. containerd collects the snapshots and blobs
// of a failed pull in the background: a pull that starts meanwhile can find the snapshot of a layer,
// lose it, and fail because "parent snapshot does not exist".
func (n *Node) Collect() {
	if !n.Containerd.Running() {
		return
	}
	_ = n.collected() // a test may stop containerd at any time
}

// clean removes the node's files. Clean-ups registered later have stopped the daemons.
func (n *Node) clean(t TB) {
	n.dropLazy(t)
	for _, lazy := range []string{filepath.Join(n.Root(), "lazy"), n.LazyApart()} {
		if err := unix.Unmount(lazy, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			t.Errorf("unmount %s: %v", lazy, err)
		}
	}
	mounts, err := n.Mounts()
	if err != nil {
		t.Errorf("mounts: %v", err)
	}
	for _, m := range mounts {
		if strings.Contains(m, "/ovl-idmapped") {
			t.Logf("containerd left %s: on a busy machine it gives up unmounting these", m)
		} else {
			t.Errorf("%s is still mounted after everything was stopped", m)
		}
		if err := unix.Unmount(m, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Errorf("unmount %s: %v", m, err)
		}
	}
	if t.Failed() && os.Getenv("BALLAST_KEEP") != "" {
		t.Logf("kept: %s", n.Dir)
		return
	}
	if err := os.RemoveAll(n.Dir); err != nil {
		t.Errorf("%v", err)
	}
}

// Mounts returns the mount points below the node's directory, innermost first.
func (n *Node) Mounts() ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) > 4 && strings.HasPrefix(f[4], n.Dir+"/") {
			found = append(found, f[4])
		}
	}
	sort.Sort(sort.Reverse(sort.StringSlice(found)))
	return found, nil
}

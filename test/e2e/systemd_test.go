package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/ballast-dev/ballast/contrib/systemd"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"golang.org/x/sys/unix"
)

const systemdProgram = "/usr/lib/systemd/systemd"

// A guest is a machine with systemd, in namespaces and a control group of its own. It runs ballastd by
// the units of contrib/systemd, and nothing else: the units of this machine are not loaded.
type guest struct {
	t    *testing.T
	node *node.Node // has the registry; its daemons are not those of the guest
	dir  string
	log  string
	pid  int    // of systemd
	end  func() // kills all processes of the guest, as a power cut does
}

// guestInit makes the mounts of a guest and becomes systemd. $1 is its directory, $2 the program, $3 the
// terminal that systemd writes its log to.
const guestInit = `set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mount --bind "$1/lib" /var/lib
mkdir -p /run/systemd
cp -r "$1/units" /run/systemd/system
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount --bind "$3" /dev/console
export container=e2e SYSTEMD_UNIT_PATH=/run/systemd/system
exec "$2" --system --unit=multi-user.target --log-target=console --log-level=info --show-status=0`

// startGuest starts a guest whose daemon has the given settings, and waits until the daemon runs.
// dropIn is added to the unit of the daemon.
func startGuest(t *testing.T, n *node.Node, settings, dropIn string) *guest {
	t.Helper()
	g := &guest{t: t, node: n, dir: filepath.Join(n.Dir, "guest")}
	g.log = filepath.Join(g.dir, "log")
	facade := node.FreeAddress(t)
	g.write("ballast.toml", fmt.Sprintf("version = 1\n[facade]\nlisten = %q\n[upstream]\nhosts_dir = %q\n%s", facade, filepath.Join(n.Dir, "ballast.d"), settings))
	bin := filepath.Dir(node.Binary(t, "ballastd"))
	r := strings.NewReplacer("=/usr/local/bin/", "="+bin+"/", "127.0.0.1:5757", facade)
	for name, text := range systemd.Units {
		g.write("units/"+name, r.Replace(text))
		wants := "multi-user.target.wants/"
		if strings.HasSuffix(name, ".socket") {
			wants = "sockets.target.wants/"
		}
		g.ok(os.MkdirAll(filepath.Join(g.dir, "units", wants), 0o755))
		g.ok(os.Symlink("../"+name, filepath.Join(g.dir, "units", wants, name)))
	}
	output := "[Service]\nStandardOutput=append:" + g.log + "\nStandardError=append:" + g.log + "\n"
	g.write("units/ballastd.service.d/test.conf", output+"Environment=BALLAST_CONFIG="+filepath.Join(g.dir, "ballast.toml")+"\n"+dropIn)
	g.write("units/ballastd-holder.service.d/test.conf", output)
	g.write("units/multi-user.target", "[Unit]\nRequires=basic.target\nAfter=basic.target\n")
	g.write("units/basic.target", "[Unit]\nRequires=sysinit.target\nWants=sockets.target\nAfter=sysinit.target sockets.target\n")
	for _, name := range []string{"sysinit", "sockets", "network", "local-fs", "shutdown", "umount"} {
		g.write("units/"+name+".target", "[Unit]\n")
	}
	g.ok(os.MkdirAll(filepath.Join(g.dir, "lib"), 0o755))
	g.boot()
	g.awaitDaemon()
	return g
}

func (g *guest) ok(err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
}

func (g *guest) write(name, text string) {
	g.t.Helper()
	p := filepath.Join(g.dir, name)
	g.ok(os.MkdirAll(filepath.Dir(p), 0o755))
	g.ok(os.WriteFile(p, []byte(text), 0o644))
}

// boot starts systemd. After end it can be called again: the guest has the same files in /var/lib then, and
// nothing in /run.
func (g *guest) boot() {
	g.t.Helper()
	cgroup := filepath.Join(cgroup2(g.t), "e2e-"+strconv.Itoa(os.Getpid())+"-"+filepath.Base(g.node.Dir))
	g.ok(os.Mkdir(cgroup, 0o755))
	log, err := os.OpenFile(g.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	g.ok(err)
	enter := `echo $$ > "$0/cgroup.procs" && exec unshare -m -p -f --kill-child --uts --ipc --cgroup sh -c "$1" sh "$2" "$3" "$4"`
	master, slave := terminal(g.t)
	cmd := exec.Command("sh", "-c", enter, cgroup, guestInit, g.dir, systemdProgram, slave)
	cmd.Stdout, cmd.Stderr = log, log
	g.ok(cmd.Start())
	var copying sync.WaitGroup
	copying.Go(func() { _, _ = io.Copy(log, master) })
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	g.t.Cleanup(func() {
		g.ok(master.Close())
		copying.Wait()
		g.ok(log.Close())
	})
	g.end = sync.OnceFunc(func() {
		if g.t.Failed() {
			if p, err := os.ReadFile(g.log); err == nil {
				lines := strings.Split(string(p), "\n")
				g.t.Logf("---- end of the log of the guest ----\n%s", strings.Join(lines[max(0, len(lines)-60):], "\n"))
			}
		}
		_ = cmd.Process.Kill() // and with it all processes of the guest
		<-ended
		waitFor(g.t, "the processes of the guest to end", func() error { return removeCgroups(cgroup) })
	})
	g.t.Cleanup(g.end)
	waitFor(g.t, "systemd to start", func() error {
		p, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid))
		if err != nil {
			return err
		}
		if g.pid, err = strconv.Atoi(strings.TrimSpace(string(p))); err != nil {
			return err
		}
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", g.pid))
		if err == nil && strings.TrimSpace(string(name)) != "systemd" {
			err = fmt.Errorf("process %d is %s", g.pid, name)
		}
		return err
	})
}

// terminal returns a pseudo terminal, and the path of its other end.
func terminal(t *testing.T) (master *os.File, slave string) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	// While it is open here too, the master can be read although systemd closes it again and again.
	slave = fmt.Sprintf("/dev/pts/%d", n)
	other, err := os.OpenFile(slave, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	return os.NewFile(uintptr(fd), "/dev/ptmx"), slave
}

// cgroup2 returns where the second version of control groups is mounted.
func cgroup2(t *testing.T) string {
	t.Helper()
	p, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(p)) {
		if f := strings.Fields(line); f[2] == "cgroup2" {
			return f[1]
		}
	}
	t.Fatal("no cgroup2 is mounted: mount -t cgroup2 cgroup2 DIR")
	return ""
}

// removeCgroups removes a control group without processes, with those below it.
func removeCgroups(dir string) error {
	below, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range below {
		if e.IsDir() {
			err = errors.Join(err, removeCgroups(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(err, syscall.Rmdir(dir))
}

// command returns a command in the guest.
func (g *guest) command(argv ...string) []string {
	return append([]string{"nsenter", "-t", strconv.Itoa(g.pid), "-m", "-p", "-u", "-i", "-C", "--"}, argv...)
}

func (g *guest) run(argv ...string) node.Result {
	return node.Command(context.Background(), []string{"BALLAST_CONFIG=" + filepath.Join(g.dir, "ballast.toml")}, g.command(argv...)...)
}

func (g *guest) must(argv ...string) string {
	g.t.Helper()
	out := g.run(argv...)
	if out.Err != nil {
		g.t.Fatalf("%v: %v\n%s", argv, out.Err, out.Output())
	}
	return out.Stdout
}

func (g *guest) systemctl(args ...string) {
	g.t.Helper()
	g.must(append([]string{"systemctl"}, args...)...)
}

func (g *guest) ballast(args ...string) string {
	g.t.Helper()
	return g.must(append([]string{node.Binary(g.t, "ballast")}, args...)...)
}

// show returns a property of a unit.
func (g *guest) show(unit, property string) string {
	g.t.Helper()
	return strings.TrimSpace(g.must("systemctl", "show", "--value", "-p", property, unit))
}

// awaitDaemon waits until the daemon and its holder are ready.
func (g *guest) awaitDaemon() {
	g.t.Helper()
	waitFor(g.t, "ballastd and its holder", func() error {
		if out := g.run("systemctl", "is-active", systemd.Service, systemd.Holder); out.Err != nil {
			return fmt.Errorf("%w: %s", out.Err, out.Output())
		}
		return g.run(node.Binary(g.t, "ballast"), "ls", "-q").Err
	})
}

// digest starts a process of the guest that reads a file. The returned function waits for its end.
func (g *guest) digest(path string) (wait func() (string, error)) {
	g.t.Helper()
	argv := g.command("sha256sum", path)
	type result struct {
		out []byte
		err error
	}
	done := make(chan result, 1)
	cmd := exec.Command(argv[0], argv[1:]...)
	go func() {
		out, err := cmd.CombinedOutput()
		done <- result{out, err}
	}()
	return func() (string, error) {
		r := <-done
		digest, _, _ := strings.Cut(string(r.out), " ")
		if r.err != nil {
			r.err = fmt.Errorf("%w: %s", r.err, r.out)
		}
		return digest, r.err
	}
}

// TestSystemd kills, stops and restarts the services of a real systemd, alone and together, while a
// process reads an incomplete model: it gets the right bytes.
func TestSystemd(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	want := weights(131, 64<<20)
	ref := convertedModel(t, n, converttest.ModelPackRaw(converttest.Files(want)))
	g := startGuest(t, n, slowBackground, "")
	crawl(n)
	model := filepath.Join(g.dir, "model")
	g.ok(os.Mkdir(model, 0o755))
	g.ballast("mount", ref, model)
	wait := g.digest(filepath.Join(model, "model.gguf"))
	both := []string{systemd.Service, systemd.Holder}
	for _, step := range [][]string{
		append([]string{"kill", "-s", "KILL"}, systemd.Service),
		append([]string{"kill", "-s", "KILL"}, systemd.Holder),
		append([]string{"kill", "-s", "KILL"}, both...),
		{"kill", "-s", "KILL", "--kill-who=main", systemd.Service},
		{"daemon-reload"},
		append([]string{"restart"}, systemd.Holder),
		append([]string{"restart"}, both...),
		append([]string{"stop"}, systemd.Service),
		append([]string{"kill", "-s", "KILL"}, systemd.Holder),
		append([]string{"start"}, systemd.Service),
	} {
		pids := g.show(systemd.Service, "MainPID") + " " + g.show(systemd.Holder, "MainPID")
		g.systemctl(step...)
		if step[0] == "kill" {
			waitFor(t, "the processes to end", func() error {
				if now := g.show(systemd.Service, "MainPID") + " " + g.show(systemd.Holder, "MainPID"); now == pids {
					return fmt.Errorf("still %s", now)
				}
				return nil
			})
		}
		if g.show(systemd.Service, "ActiveState") == "inactive" { // stopped
			g.must("timeout", "60", "df", "/var/lib/ballast/lazy")
			g.must("timeout", "60", "find", "/var/lib/ballast")
			continue
		}
		g.awaitDaemon()
	}
	if g.run("pidof", "sha256sum").Err != nil {
		t.Error("the reader has ended too early, it proved little")
	}
	n.Registry.Wire.Link(0, 0)
	got, err := wait()
	if sum := sha256.Sum256(want); err != nil || got != hex.EncodeToString(sum[:]) {
		t.Errorf("read: %v, or other bytes", err)
	}
	p, err := os.ReadFile(g.log)
	g.ok(err)
	if !strings.Contains(string(p), "Main process exited, code=killed, status=9/KILL") {
		t.Error("the log is not that of systemd")
	}
	for line := range strings.Lines(string(p)) {
		for _, bad := range []string{"Unknown key", "Unknown lvalue", "left-over process", "no lazy mount is taken over"} {
			if strings.Contains(line, bad) && !strings.Contains(line, "not found") {
				t.Errorf("log: %s", line)
			}
		}
	}
	g.ballast("unmount", model)
}

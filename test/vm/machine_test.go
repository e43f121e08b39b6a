//go:build vm

package vm

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"golang.org/x/crypto/ssh"
)

// patience is how long a test waits for a condition, pause the time between two checks.
const (
	patience = 20 * time.Minute
	pause    = 300 * time.Millisecond
)

// A kind is a kind of machine that build.sh makes.
type kind struct {
	name   string // of its disk
	distro string // as people call it
	arch   string // "" is amd64
	kernel string // added to the command line

	network string // added to the options of its network
}

var (
	debian12 = kind{name: "debian12", distro: "Debian 12"}
	debian13 = kind{name: "debian13", distro: "Debian 13"}
)

// kernel13 is the kernel of Debian 13.
const kernel13 = "6.12-debian13"

// A machine is a virtual machine that can be started several times.
type machine struct {
	kind
	test       *testing.T // that the machine ends with
	registries *registries

	dir  string
	disk string // a copy on write
	key  ssh.Signer

	kernel     string // that runs
	containerd string // version
	boots      int
	mounts     int
	qemu       *node.Process
	client     *ssh.Client
}

// newMachine makes a machine that is off.
func newMachine(t *testing.T, k kind, r *registries) *machine {
	t.Helper()
	m := &machine{kind: k, test: t, registries: r, dir: t.TempDir()}
	m.disk = filepath.Join(m.dir, "disk")
	p, err := os.ReadFile(image(t, "key"))
	if err != nil {
		t.Fatal(err)
	}
	if m.key, err = ssh.ParsePrivateKey(p); err != nil {
		t.Fatal(err)
	}
	argv, env := m.program(t, "qemu-img")
	out := node.Command(t.Context(), env, append(argv, "create", "-q", "-f", "qcow2", "-F", "raw", "-b", image(t, k.name+".img"), m.disk)...)
	if out.Err != nil {
		t.Fatalf("%v\n%s", out.Err, out.Output())
	}
	return m
}

// program returns the start of the command line of a program of QEMU, which is unpacked and not installed.
func (m *machine) program(t *testing.T, name string) (argv, env []string) {
	t.Helper()
	dir := "qemu"
	if strings.HasSuffix(name, "aarch64") {
		dir = "qemu-arm"
	}
	root := image(t, dir)
	lib := filepath.Join(root, "usr/lib/x86_64-linux-gnu")
	argv = []string{filepath.Join(root, "usr/lib64/ld-linux-x86-64.so.2"), "--library-path", lib, filepath.Join(root, "usr/bin", name)}
	if name != "qemu-img" {
		for _, d := range []string{"usr/share/qemu", "usr/share/seabios"} {
			argv = append(argv, "-L", filepath.Join(root, d))
		}
	}
	return argv, []string{"QEMU_MODULE_DIR=" + filepath.Join(lib, "qemu")}
}

// boot starts the machine with a kernel of build.sh, and a second disk with the files of the cargo.
func (m *machine) boot(t *testing.T, kernel string, c cargo) {
	t.Helper()
	address := node.FreeAddress(t)
	m.boots++
	load := filepath.Join(m.dir, "cargo")
	if err := c.write(load); err != nil {
		t.Fatal(err)
	}
	system, model, console := "qemu-system-x86_64", []string{"-machine", "q35,sata=off,smbus=off,usb=off,hpet=off", "-cpu", "max,la57=off"}, "ttyS0" // page tables of 4 levels
	if m.arch == "arm64" {
		system, model, console = "qemu-system-aarch64", []string{"-machine", "virt", "-cpu", "cortex-a72"}, "ttyAMA0"
	}
	argv, env := m.program(t, system)
	argv = append(argv, model...)
	argv = append(argv,
		"-accel", "tcg,thread=multi", "-smp", "2", "-m", "3072", "-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio",
		"-kernel", image(t, filepath.Join("kernel", kernel, "vmlinuz")), "-initrd", image(t, filepath.Join("kernel", kernel, "initrd")),
		"-append", strings.TrimSpace("root=/dev/vda rw panic=1 mitigations=off console="+console+" "+m.kind.kernel),
		// No lock: after a power cut, the programs that QEMU has started for connections can hold it for a while.
		"-drive", "if=virtio,format=qcow2,file.locking=off,file="+m.disk,
		"-drive", "if=virtio,format=raw,readonly=on,file="+load,
		"-device", "virtio-rng-pci", "-device", "virtio-net-pci,netdev=net,romfile=",
		"-netdev", fmt.Sprintf("user,id=net,net=203.0.113.0/24,restrict=on,hostfwd=tcp:%s-:22,guestfwd=tcp:%s:443-cmd:%s nc 127.0.0.1 %s%s",
			address, registriesAddress, node.BusyboxPath, m.registries.port(t), m.network))
	m.qemu = node.Start(m.test, "qemu", filepath.Join(m.dir, fmt.Sprintf("console%d", m.boots)), env, argv...)
	m.connect(t, address)
	m.kernel = strings.TrimSpace(m.sh(t, "uname -r"))
	m.sh(t, "tar -C / -xf /dev/vdb")
}

// connect logs in.
func (m *machine) connect(t *testing.T, address string) {
	t.Helper()
	config := &ssh.ClientConfig{
		User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(m.key)}, Timeout: 20 * time.Second,
		HostKeyCallback: ssh.InsecureIgnoreHostKey(), // a disk of this test, by loopback
	}
	end := time.Now().Add(patience)
	for {
		c, err := ssh.Dial("tcp", address, config)
		if err == nil {
			m.client = c
			return
		}
		if !m.qemu.Running() || time.Now().After(end) {
			t.Fatalf("the machine does not start: %v\n%s", err, m.qemu.Tail(60))
		}
		time.Sleep(pause)
	}
}

// cut ends the machine as a power cut does.
func (m *machine) cut() {
	m.qemu.Kill()
	_ = m.client.Close()
}

// off waits until the machine has switched itself off.
func (m *machine) off(t *testing.T) {
	t.Helper()
	eventually(t, "the machine to be off", func() error {
		if m.qemu.Running() {
			return errors.New("it runs")
		}
		return nil
	})
	_ = m.client.Close()
}

// reboot reboots the machine, with a kernel of build.sh.
func (m *machine) reboot(t *testing.T, kernel string, c cargo) {
	t.Helper()
	m.try("systemctl reboot") // the connection may break
	m.off(t)
	m.boot(t, kernel, c)
}

// try runs a script as root.
func (m *machine) try(script string) node.Result {
	var out, err strings.Builder
	s, e := m.client.NewSession()
	if e != nil {
		return node.Result{Err: fmt.Errorf("ssh: %w", e)}
	}
	defer s.Close()
	s.Stdout, s.Stderr = &out, &err
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = m.client.Close() }) // the machine hangs
	defer stop()
	e = s.Run(script)
	if ctx.Err() != nil {
		e = fmt.Errorf("no end after %v: %w", patience, e)
	}
	return node.Result{Stdout: out.String(), Stderr: err.String(), Err: e}
}

// sh runs a script that must succeed and returns its standard output.
func (m *machine) sh(t *testing.T, script string) string {
	t.Helper()
	out := m.try("set -e\n" + script)
	if out.Err != nil {
		t.Fatalf("%s\n%v\n%s", script, out.Err, out.Output())
	}
	return out.Stdout
}

// journey runs a part of a test as a subtest, and adds it to the table.
func (m *machine) journey(t *testing.T, name string, f func(t *testing.T)) bool {
	t.Helper()
	start := time.Now()
	ran := false // with -test.run not all do
	ok := t.Run(name, func(t *testing.T) {
		ran = true
		t.Cleanup(func() {
			if t.Failed() && m.qemu.Running() {
				t.Logf("---- the machine ----\n%s", m.try("ballast doctor; systemctl --failed; journalctl -b -n 30 --no-pager -o cat -u 'ballastd*'; journalctl -b -u containerd --no-pager -o cat | grep -v level=info | tail -n 20").Output())
			}
		})
		f(t)
	})
	if !ran {
		return true
	}
	results.add(result{machine: m.distro, kernel: m.kernel, containerd: m.containerd, journey: name, ok: ok, took: time.Since(start)})
	t.Logf("%s: %v in %v", name, ok, time.Since(start).Round(time.Second))
	return ok
}

// eventually waits until f returns nil.
func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	end := time.Now().Add(patience)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("no %s after %v: %v", what, patience, err)
		}
		time.Sleep(pause)
	}
}

// cargo are files that a machine gets when it starts, by their path there.
type cargo map[string]load

// A load is a file of this machine, or a text.
type load struct {
	from string
	text string
	mode int64
}

// write writes the cargo as a tar archive, which the machine sees as a disk.
func (c cargo) write(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	w := tar.NewWriter(f)
	for to, l := range c {
		if err := l.write(w, to); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), f.Close())
}

func (l load) write(w *tar.Writer, to string) error {
	var from io.Reader = strings.NewReader(l.text)
	size := int64(len(l.text))
	if l.from != "" {
		f, err := os.Open(l.from)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		from, size = f, info.Size()
	}
	if err := w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(to, "/"), Mode: l.mode, Size: size, ModTime: time.Now()}); err != nil {
		return err
	}
	_, err := io.Copy(w, from)
	return err
}

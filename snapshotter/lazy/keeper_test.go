package lazy

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// A manager stores descriptors as the service manager does: a datagram socket that accepts FDSTORE and
// FDSTOREREMOVE, and passes the descriptors to the services that it starts.
type manager struct {
	address string
	conn    *net.UnixConn
	done    sync.WaitGroup

	ready chan struct{} // has a value for each service that is ready

	mu     sync.Mutex
	stored map[string]*os.File
	polled []string // names to be polled
}

func startManager(t *testing.T) *manager {
	t.Helper()
	m := &manager{address: filepath.Join(t.TempDir(), "notify"), stored: map[string]*os.File{}, ready: make(chan struct{}, 100)}
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: m.address})
	if err != nil {
		t.Fatal(err)
	}
	m.conn = c
	m.done.Go(m.run)
	t.Cleanup(func() {
		c.Close()
		m.done.Wait()
		for _, f := range m.stored {
			f.Close()
		}
	})
	return m
}

func (m *manager) run() {
	for {
		buf, oob := make([]byte, 512), make([]byte, unix.CmsgSpace(4))
		n, k, _, _, err := m.conn.ReadMsgUnix(buf, oob)
		if err != nil {
			return // closed
		}
		var fds []int
		if control, err := unix.ParseSocketControlMessage(oob[:k]); err == nil && len(control) == 1 {
			fds, _ = unix.ParseUnixRights(&control[0])
		}
		vars := map[string]string{}
		for _, line := range strings.Split(string(buf[:n]), "\n") {
			k, v, _ := strings.Cut(line, "=")
			vars[k] = v
		}
		m.mu.Lock()
		name := vars["FDNAME"]
		switch {
		case vars["FDSTORE"] == "1" && len(fds) == 1:
			if old := m.stored[name]; old != nil {
				old.Close()
			}
			m.stored[name] = os.NewFile(uintptr(fds[0]), name)
			if vars["FDPOLL"] != "0" {
				m.polled = append(m.polled, name)
			}
		case vars["FDSTOREREMOVE"] == "1":
			if f := m.stored[name]; f != nil {
				f.Close()
				delete(m.stored, name)
			}
		default:
			if vars["READY"] == "1" {
				m.ready <- struct{}{}
			}
			for _, fd := range fds {
				unix.Close(fd)
			}
		}
		m.mu.Unlock()
	}
}

// files returns copies of what is stored, and the arguments that describe them.
func (m *manager) files(t *testing.T) (copies []*os.File, args []string) {
	t.Helper()
	var names []string
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, f := range m.stored {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		copies, names = append(copies, os.NewFile(uintptr(fd), name)), append(names, name)
	}
	return copies, []string{"--notify", m.address, "--count", strconv.Itoa(len(names)), "--listen", strings.Join(names, ":")}
}

// startHolder starts the holder of a place as a service and waits until it is ready. The returned
// function kills it.
func (m *manager) startHolder(t *testing.T, p place) (kill func()) {
	t.Helper()
	copies, args := m.files(t)
	cmd := exec.Command("/proc/self/exe", append([]string{"holder", "--stay", "--socket", p.socket}, args...)...)
	cmd.ExtraFiles, cmd.Stderr = copies, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, f := range copies {
		f.Close()
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(kill)
	<-m.ready
	return kill
}

func (m *manager) names() (names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.stored {
		names = append(names, name)
	}
	return names
}

// TestHolderService kills the daemon, the holder that the service manager runs, and both: a read
// that waits goes on each time, because the manager stores the connection too.
func TestHolderService(t *testing.T) {
	p := newPlace(t)
	file := p.add(t, 1, 1<<20, 0)
	m := startManager(t)
	kill := m.startHolder(t, p)
	d := startDaemon(t, p.args()...)
	f := open(t, p.path(file))
	done := make(chan error, 1)
	go func() { done <- readAt(f, 1, 0, 1<<20) }()
	for _, killed := range []string{"daemon", "holder", "both", "both again", "both, and the daemon starts first"} {
		eventually(t, "a read waits", func() bool { return d.stats().Waiting > 0 })
		eventually(t, "the manager stores the connection", func() bool {
			names := m.names()
			return len(names) == 1 && strings.HasPrefix(names[0], namePrefix)
		})
		if killed != "holder" {
			d.kill()
		}
		holder := make(chan func(), 1)
		switch killed {
		case "daemon":
			holder <- kill
		case "both, and the daemon starts first":
			kill()
			time.AfterFunc(200*time.Millisecond, func() { holder <- m.startHolder(t, p) })
		default:
			kill()
			holder <- m.startHolder(t, p)
		}
		if killed == "holder" {
			kill = <-holder
			continue
		}
		d = startDaemon(t, append(p.args(), "--wait", "1m")...)
		kill = <-holder
		if s := d.stats(); s.Takeovers != 1 {
			t.Fatalf("%s: %+v\n%s", killed, s, d.log)
		}
	}
	p.set(t, file, ".have", 1<<20)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if len(m.polled) != 0 {
		t.Errorf("the manager is to wake up for every request: %q", m.polled)
	}
	d.tell("unmount")
	eventually(t, "nothing is stored", func() bool { return len(m.names()) == 0 })
	kill()
}

// TestHolderReplaced starts the service of the holder under a daemon that has started a holder of its
// own, as an upgrade does: the service takes the connection, and the other holder ends.
func TestHolderReplaced(t *testing.T) {
	p := newPlace(t)
	file := p.add(t, 1, 1<<20, 0)
	d := startDaemon(t, p.args()...)
	f := open(t, p.path(file))
	done := make(chan error, 1)
	go func() { done <- readAt(f, 1, 0, 1<<20) }()
	own := holderPid(p.socket)
	kill := startManager(t).startHolder(t, p)
	eventually(t, "the first holder ends", func() bool { return unix.Kill(own, 0) != nil })
	d.kill()
	d = startDaemon(t, p.args()...)
	if s := d.stats(); s.Takeovers != 1 {
		t.Fatalf("%+v\n%s", s, d.log)
	}
	p.set(t, file, ".have", 1<<20)
	if err := <-done; err != nil {
		t.Error(err)
	}
	kill()
	eventually(t, "the daemon starts a holder again", func() bool { return holderPid(p.socket) != 0 })
	d.tell("unmount")
}

// TestHolderStaysClean checks the process that keeps the connection.
func TestHolderStaysClean(t *testing.T) {
	p := newPlace(t)
	d := startDaemon(t, p.args()...)
	pid := holderPid(p.socket)
	dir := "/proc/" + strconv.Itoa(pid)
	if cwd, err := os.Readlink(dir + "/cwd"); err != nil || cwd != "/" {
		t.Errorf("cwd %q, %v", cwd, err)
	}
	for _, fd := range []string{"0", "1", "2"} {
		if target, err := os.Readlink(dir + "/fd/" + fd); err != nil || target != os.DevNull {
			t.Errorf("file %s is %q, %v", fd, target, err)
		}
	}
	if sid, err := unix.Getsid(pid); err != nil || sid != pid {
		t.Errorf("session %d of process %d, %v", sid, pid, err)
	}
	if adj, err := os.ReadFile(dir + "/oom_score_adj"); err != nil || strings.TrimSpace(string(adj)) != "-999" {
		t.Logf("oom_score_adj %s, %v", adj, err) // not permitted everywhere
	}
	fuse := 0
	entries, err := os.ReadDir(dir + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if target, _ := os.Readlink(dir + "/fd/" + e.Name()); target == "/dev/fuse" {
			fuse++
		}
	}
	if fuse != 1 {
		t.Errorf("%d connections are kept", fuse)
	}
	d.tell("unmount")
}

// TestState reads back what was written, and refuses the state of another mount.
func TestState(t *testing.T) {
	rec := &record{Version: recordVersion, ID: "0123456789abcdef", Dir: "/x", Dev: "0:1"}
	dir := t.TempDir()
	st, err := createState(dir, rec)
	if err != nil {
		t.Fatal(err)
	}
	fs := &fileSystem{state: st, nodes: map[uint64]*node{}}
	// Digests with equal first bits, which do not occur by chance.
	prefix := strings.Repeat("ab", 8)
	var ids []uint64
	for i := range maxProbes {
		n, err := fs.node(0, digest.NewDigestFromEncoded(digest.SHA256, prefix+strings.Repeat("0", 47)+strconv.Itoa(i)), digest.NewDigestFromEncoded(digest.SHA256, prefix+strings.Repeat("0", 47)+strconv.Itoa(i)), int64(i))
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(ids, n.id) {
			t.Fatalf("two files have number %#x", n.id)
		}
		ids = append(ids, n.id)
	}
	if n, err := fs.node(0, digest.NewDigestFromEncoded(digest.SHA256, prefix+strings.Repeat("0", 47)+"3"), digest.NewDigestFromEncoded(digest.SHA256, prefix+strings.Repeat("0", 47)+"3"), 3); err != nil || n.id != ids[3] {
		t.Errorf("another number the second time: %v, %v", n, err)
	}
	if _, err := fs.node(0, digest.NewDigestFromEncoded(digest.SHA256, prefix+strings.Repeat("0", 47)+"9"), digest.NewDigestFromEncoded(digest.SHA256, prefix+strings.Repeat("0", 47)+"9"), 9); err == nil {
		t.Error("no error when numbers are taken")
	}
	if _, err := fs.node(0, digest.NewDigestFromEncoded(digest.SHA256, prefix+strings.Repeat("0", 47)+"3"), digest.NewDigestFromEncoded(digest.SHA256, prefix+strings.Repeat("0", 47)+"3"), 4); err == nil {
		t.Error("no error when a file changes its size")
	}
	if n, err := fs.node(0, digest.NewDigestFromEncoded(digest.SHA256, strings.Repeat("f", 64)), digest.NewDigestFromEncoded(digest.SHA256, strings.Repeat("f", 64)), 1); err != nil || n.id == ^uint64(0) {
		t.Errorf("%v, %v", n, err)
	}
	d := digest.FromString("of a view")
	if n, err := fs.node(12, d, d, 5); err != nil {
		t.Fatal(err)
	} else if other, err := fs.node(13, d, d, 6); err != nil || other.id == n.id {
		t.Fatalf("the file of another view: %v, %v", other, err)
	}
	if err := st.close(); err != nil {
		t.Fatal(err)
	}

	got, err := readRecord(dir)
	if err != nil {
		t.Fatal(err)
	}
	if st, err = openState(dir, got); err != nil {
		t.Fatal(err)
	}
	again, views := map[uint64]string{}, map[uint64]int64{}
	slots, err := st.loadNodes(func(n *node) {
		again[n.id] = n.digest.Encoded()
		if n.digest == d {
			views[n.view] = n.size
		}
	})
	if err != nil || slots != maxProbes+3 || len(again) != maxProbes+3 || views[12] != 5 || views[13] != 6 {
		t.Errorf("%d slots, %d nodes, of views %v, %v", slots, len(again), views, err)
	}
	for i, id := range ids {
		if want := prefix + strings.Repeat("0", 47) + strconv.Itoa(i); again[id] != want {
			t.Errorf("node %#x is %s, want %s", id, again[id], want)
		}
	}
	if err := st.close(); err != nil {
		t.Fatal(err)
	}
	got.ID = "fedcba9876543210"
	if st, err := openState(dir, got); err == nil {
		t.Error("state of another mount is accepted")
		st.close()
	}
}

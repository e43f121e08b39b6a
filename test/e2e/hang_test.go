package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/store/storetest/disktest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"golang.org/x/sys/unix"
)

// everEnds is more than any command may take on a busy machine.
const everEnds = 4 * time.Minute

// endAll runs commands of ballast at once, and returns what they printed. Each must end.
func endAll(t *testing.T, n *node.Node, commands ...[]string) map[string]node.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), everEnds)
	defer cancel()
	var all sync.WaitGroup
	var mu sync.Mutex
	out := map[string]node.Result{}
	for _, args := range commands {
		all.Go(func() {
			start := time.Now()
			r := node.Command(ctx, n.Env(), append([]string{node.Binary(t, "ballast"), "--config", n.ConfigFile()}, args...)...)
			if ctx.Err() != nil {
				t.Errorf("ballast %s does not end", strings.Join(args, " "))
			}
			t.Logf("ballast %s ends after %v", strings.Join(args, " "), time.Since(start).Round(time.Second))
			mu.Lock()
			defer mu.Unlock()
			out[args[0]] = r
		})
	}
	all.Wait()
	return out
}

// doctorArgs checks the node of a test.
func doctorArgs(n *node.Node) []string {
	return []string{"doctor", "--containerd-config", n.ContainerdConfigFile(), "--hosts-dir", n.HostsDir()}
}

// TestStoppedDaemon stops the processor of the daemon for good: all commands end and say why, the doctor makes its
// other checks, and what needs no daemon works.
func TestStoppedDaemon(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	b := converttest.ModelPackRaw(converttest.Files(weights(133, 3<<20)))
	ref := push(t, n, b)
	mustPull(t, n, "ballast", ref)
	if err := syscall.Kill(n.Ballastd.Pid(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(n.Ballastd.Pid(), syscall.SIGCONT)
	const why = "ballastd does not answer: it hangs, or its disk does"
	asked := [][]string{{"ls"}, {"status"}, {"df"}, {"version"}, {"why", ref}, {"inspect", ref}, {"verify", ref}, {"prefetch", ref},
		{"pause"}, {"resume"}, {"rm", ref}, {"gc", "-y"}, {"pin", "ls"}, {"mount", "ls"}, {"node", "ready"}}
	for command, r := range endAll(t, n, append(asked, doctorArgs(n), []string{"setup", "--remove", "--dry-run"})...) {
		if command != "setup" && command != "version" && (r.Err == nil || !strings.Contains(r.Output(), why)) {
			t.Errorf("ballast %s: %v\n%s", command, r.Err, r.Output())
		}
		if command == "doctor" && !strings.Contains(r.Output(), "hosts.toml: ") {
			t.Errorf("the doctor does not go on:\n%s", r.Output())
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), everEnds)
	defer cancel()
	if r := node.Command(ctx, n.Env(), "df", "-x", "fuse.ballast"); ctx.Err() != nil || r.Stdout == "" {
		t.Errorf("df without the lazy mount: %v\n%s", r.Err, r.Output())
	}
	if err := syscall.Kill(n.Ballastd.Pid(), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	wantFiles(t, n, ref, states(b))
}

// TestHungDisk lets the disk of the root hang: all commands end, and those that need no disk work.
func TestHungDisk(t *testing.T) {
	n := node.StartNode(t, node.Options{Config: "[fetch]\nreserve = \"1MiB\"\n"})
	n.Ballastd.Stop(t)
	disk := disktest.New(t, "ext4", filepath.Join(n.Dir, "disk"), 512<<20)
	if err := unix.Mount(disk.Dir, n.Root(), "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		disk.Resume()
		n.Ballastd.Stop(t)
		if err := unix.Unmount(n.Root(), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Error(err)
		}
	})
	n.StartBallastd(t)
	b := converttest.ModelPackRaw(converttest.Files(weights(134, 3<<20)))
	ref := push(t, n, b)
	mustPull(t, n, "ballast", ref)
	other := push(t, n, converttest.ModelPackRaw(converttest.Files(weights(135, 64<<20))))
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil { // what is in memory needs no disk
		t.Fatal(err)
	}
	disk.Hang()
	pull := make(chan node.Result, 1)
	go func() { pull <- n.Ballast("-q", "prefetch", other) }()
	for command, r := range endAll(t, n, []string{"ls"}, []string{"status"}, []string{"df"}, []string{"version"}, []string{"gc", "-y"},
		[]string{"rm", ref}, doctorArgs(n), []string{"setup", "--remove", "--dry-run"}) {
		switch command {
		case "ls", "status", "version":
			if r.Err != nil {
				t.Errorf("ballast %s: %v\n%s", command, r.Err, r.Output())
			}
		case "doctor":
			if !strings.Contains(r.Output(), "hosts.toml: ") || !strings.Contains(r.Output(), "it has written nothing") {
				t.Errorf("the doctor does not see the disk, or does not go on:\n%s", r.Output())
			}
		}
	}
	disk.Resume()
	if r := <-pull; r.Err != nil {
		t.Errorf("a download during that: %v\n%s", r.Err, r.Output())
	}
	if r := n.Ballast("verify", other); r.Err != nil {
		t.Errorf("verify: %v\n%s", r.Err, r.Output())
	}
}

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// nobody is a user without files.
const nobody = 65534

// The users whose containers must see models, as flags of `ctr run`.
var otherUsers = map[string][]string{
	"nobody":                    {"--user", "65534:65534"},
	"root of a user namespace":  {"--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536"},
	"user of a user namespace":  {"--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536", "--user", "1000:1000"},
	"user namespace by mapping": {"--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536", "--remap-labels", "--user", "1000:1000"},
}

// as runs a command as a user.
func as(uid uint32, argv ...string) (string, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// wantReadable reads a file at the top of an image as each of the other users.
func wantReadable(t *testing.T, n *node.Node, ref, name string, want []byte) {
	t.Helper()
	for who, flags := range otherUsers {
		out := n.RunAs(flags, "ballast", ref, `$B sha256sum < "/$1"`, name)
		if out.Err != nil || !strings.HasPrefix(out.Stdout, digest.FromBytes(want).Encoded()) {
			t.Errorf("%s: %v: %s", who, out.Err, out.Output())
		}
	}
}

// Containers of other users see complete models, with each backend, and other processes of these users
// do not.
func TestOtherUsers(t *testing.T) {
	for _, show := range ways {
		t.Run(show, func(t *testing.T) {
			n := node.StartNode(t, node.Options{Config: showAs(show)})
			b := converttest.ModelPackRaw(converttest.Files(weights(240, 2<<20)))
			ref := push(t, n, b)
			mustPull(t, n, "ballast", ref)
			wantReadable(t, n, ref, "model.gguf", b.Files["model.gguf"].Data)
			wantPrivate(t, n)
		})
	}
}

// The same for an incomplete model.
func TestOtherUsersLazy(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	pause(t, n)
	m := mountLazy(t, n, 48<<20, 0)
	for who, flags := range otherUsers {
		if m.complete() {
			t.Error("the model was complete too early; the test proves nothing")
		}
		at := 1 + len(who)%8
		out := n.RunAs(flags, "ballast", m.ref, `$B dd if=/model.gguf bs=4096 count=1 skip=$1 2>/dev/null | $B sha256sum`, fmt.Sprint(at<<8))
		if out.Err != nil || !strings.HasPrefix(out.Stdout, digest.FromBytes(m.want[at<<20:][:4096]).Encoded()) {
			t.Errorf("%s: %v: %s", who, out.Err, out.Output())
		}
	}
	wantPrivate(t, n)
}

// wantPrivate fails the test if another user can enter or list ballastd's directories, or open its
// sockets.
func wantPrivate(t *testing.T, n *node.Node) {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(n.Root(), "*"))
	if err != nil {
		t.Fatal(err)
	}
	sockets := []string{"ballastd.sock", "admin.sock", "holder.sock", "status/status.sock", "fleet/fleet.sock"}
	for _, s := range sockets[3:] {
		dirs = append(dirs, filepath.Join(n.Run(), filepath.Dir(s)))
	}
	for _, p := range append(dirs, n.Root()) {
		info, err := os.Lstat(p)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got&0o077 != 0 {
			t.Errorf("%s has mode %v", p, got)
		}
		if out, err := as(nobody, "ls", p); err == nil {
			t.Errorf("nobody lists %s: %s", p, out)
		}
	}
	for _, s := range sockets {
		info, err := os.Stat(filepath.Join(n.Run(), s))
		if os.IsNotExist(err) && s == "holder.sock" {
			continue
		}
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", s, info.Mode(), err)
		}
	}
}

// With any umask of the daemon, its files are private and containers of other users see models.
func TestUmask(t *testing.T) {
	for _, mask := range []int{0, 0o077} {
		t.Run(fmt.Sprintf("%03o", mask), func(t *testing.T) {
			for _, show := range ways {
				n := node.StartNode(t, node.Options{Config: showAs(show)})
				n.Ballastd.Stop(t)
				if out, err := exec.Command(node.Binary(t, "ballastd"), "unmount", "--config", n.ConfigFile()).CombinedOutput(); err != nil {
					t.Fatalf("unmount: %v: %s", err, out)
				}
				if err := os.RemoveAll(n.Root()); err != nil {
					t.Fatal(err)
				}
				before := unix.Umask(mask)
				n.StartBallastd(t)
				unix.Umask(before)
				b := converttest.ModelPackTar(converttest.Files(weights(242, 1<<20)))
				ref := push(t, n, b)
				mustPull(t, n, "ballast", ref)
				wantReadable(t, n, ref, "model.gguf", b.Files["model.gguf"].Data)
				wantFiles(t, n, ref, states(b))
				wantPrivate(t, n)
			}
		})
	}
}

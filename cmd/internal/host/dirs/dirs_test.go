package dirs

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"
)

// A site is the file system of a machine below a temporary directory. Paths are those of the machine.
type site struct {
	t    *testing.T
	host string
	c    *config.Config
}

func newSite(t *testing.T) *site {
	s := &site{t, t.TempDir(), config.Default()}
	for _, d := range []string{"/var/lib", "/run"} {
		s.mkdir(d)
	}
	return s
}

func (s *site) at(p string) string { return filepath.Join(s.host, p) }

func (s *site) ok(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) mkdir(p string) { s.t.Helper(); s.ok(os.MkdirAll(s.at(p), 0o755)) }

// write writes a file with its path as content.
func (s *site) write(paths ...string) {
	s.t.Helper()
	for _, p := range paths {
		s.mkdir(filepath.Dir(p))
		s.ok(os.WriteFile(s.at(p), []byte(p), 0o644))
	}
}

func (s *site) link(to, p string) {
	s.t.Helper()
	s.mkdir(filepath.Dir(p))
	s.ok(os.Symlink(to, s.at(p)))
}

// socket makes a socket on which nobody listens, as a process that was killed leaves it.
func (s *site) socket(p string) {
	s.t.Helper()
	s.mkdir(filepath.Dir(p))
	s.ok(unix.Mknod(s.at(p), unix.S_IFSOCK|0o600, 0))
}

// tree returns what is below a path, with the modes and contents.
func (s *site) tree(p string) (all []string) {
	s.t.Helper()
	s.ok(filepath.WalkDir(s.at(p), func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		var content []byte
		if info.Mode().IsRegular() {
			if content, err = os.ReadFile(name); err != nil {
				return err
			}
		}
		all = append(all, fmt.Sprintf("%s %v %s", strings.TrimPrefix(name, s.host), info.Mode(), content))
		return nil
	}))
	return all
}

func (s *site) dir(key string) Dir {
	all := All(s.c)
	return all[slices.IndexFunc(all, func(d Dir) bool { return d.Key == key })]
}

// usedRoot fills the root as a daemon does.
func (s *site) usedRoot(root string) {
	s.write(root+"/store.db", root+"/store.db.damaged-20260102T030405.678Z", root+"/objects/sha256/ab/abcd", root+"/partial/x/data",
		root+"/metadata.db", root+"/snapshots/1/fs/model.gguf", root+"/tls/ca.pem", root+"/secrets/key", root+"/lazy-state/nodes")
	for _, d := range []string{"archives", "damaged", "hide", "lazy", "views", "probe-123"} {
		s.mkdir(root + "/" + d)
	}
}

// inNamespace gives the test a mount namespace of its own, which ends with the thread.
func inNamespace(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Fatalf("mounts need root: %v", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
}

// mount mounts a tmpfs, until the end of the test.
func (s *site) mount(p string) {
	s.t.Helper()
	s.mkdir(p)
	s.ok(unix.Mount("tmpfs", s.at(p), "tmpfs", 0, "size=1m,mode=755"))
	s.t.Cleanup(func() { s.ok(unix.Unmount(s.at(p), unix.MNT_DETACH)) })
}

func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func(s *site)
		want string // in the error; "" if it is accepted
	}{
		{"nothing there", func(*site) {}, ""},
		{"empty", func(s *site) { s.mkdir("/var/lib/ballast"); s.mkdir("/run/ballast") }, ""},
		{"new file system", func(s *site) { s.mkdir("/var/lib/ballast/lost+found") }, ""},
		{"used", func(s *site) { s.usedRoot("/var/lib/ballast") }, ""},
		{"used, with a file of others", func(s *site) { s.usedRoot("/var/lib/ballast"); s.write("/var/lib/ballast/notes.txt") }, ""},
		{"first start interrupted", func(s *site) { s.mkdir("/var/lib/ballast/partial") }, ""},
		{"without database", func(s *site) { s.write("/var/lib/ballast/objects/sha256/ab/abcd", "/var/lib/ballast/snapshots/1/x") }, ""},
		{"files of others", func(s *site) { s.write("/var/lib/ballast/b", "/var/lib/ballast/a/x", "/var/lib/ballast/c") },
			"root: /var/lib/ballast has files that are not ballast's (a, b and 1 more); use a directory of its own, such as /var/lib/ballast"},
		{"another snapshotter", func(s *site) { s.write("/var/lib/ballast/metadata.db", "/var/lib/ballast/snapshots/1/fs/x") }, "not ballast's (metadata.db, snapshots)"},
		{"downloads of others", func(s *site) { s.write("/var/lib/ballast/partial/film.part") }, "not ballast's (partial)"},
		{"emptied under a daemon, which made keys", func(s *site) {
			s.write("/var/lib/ballast/tls/authority.pem", "/var/lib/ballast/tls/ca.pem", "/var/lib/ballast/tls/client.pem")
		}, ""},
		{"keys of others", func(s *site) { s.write("/var/lib/ballast/tls/ca.pem") }, "not ballast's (tls)"},
		{"archives of others", func(s *site) { s.write("/var/lib/ballast/archives/2024.tar") }, "not ballast's (archives)"},
		{"file", func(s *site) { s.write("/var/lib/ballast") }, "root: /var/lib/ballast is not a directory"},
		{"link to a shared directory", func(s *site) { s.link("/var/lib", "/srv/x"); s.c.Root = "/srv/x" },
			"root: /srv/x is /var/lib, which is used by other programs; use a directory of its own, such as /var/lib/ballast"},
		{"link above", func(s *site) { s.link("../..", "/srv/a/x"); s.c.Root = "/srv/a/x/var/../var/lib/" }, "root: /srv/a/x/var/lib is /var/lib, which"},
		{"link to a directory of its own", func(s *site) { s.mkdir("/disk/models"); s.link("/disk/models", "/var/lib/ballast") }, ""},
		{"link to files of others", func(s *site) { s.write("/disk/x"); s.link("../../disk", "/var/lib/ballast") }, "not ballast's (x)"},
		{"writable root", func(s *site) { s.mkdir("/var/lib/ballast"); s.ok(os.Chmod(s.at("/var/lib/ballast"), 0o777)) },
			"root: other users can change /var/lib/ballast: chmod go-w /var/lib/ballast"},
		{"root of a user", func(s *site) { s.mkdir("/var/lib/ballast"); s.ok(os.Chown(s.at("/var/lib/ballast"), 1000, 0)) }, "belongs to the user 1000"},

		{"sockets of a killed daemon", func(s *site) { s.socket("/run/ballast/ballastd.sock"); s.socket("/run/ballast/admin.sock.new") }, ""},
		{"sockets of others", func(s *site) { s.socket("/run/ballast/metrics.sock") }, ""},
		{"models mounted on the host", func(s *site) { s.mkdir("/run/ballast/models/" + strings.Repeat("a", 64)) }, ""},
		{"run directory of others", func(s *site) { s.write("/run/ballast/other.pid") },
			"address: /run/ballast has files that are not ballast's (other.pid); use a directory of its own, such as /run/ballast"},
		{"run directory of root alone, with a file of others", func(s *site) { s.write("/run/ballast/other.pid"); s.ok(os.Chmod(s.at("/run/ballast"), 0o700)) }, ""},
		{"link to /run", func(s *site) { s.link("..", "/run/x"); s.c.Address = "/run/x/run/b.sock" }, "address: /run/x/run is /run, which is used by other programs"},
		{"writable sockets", func(s *site) { s.mkdir("/run/ballast"); s.ok(os.Chmod(s.at("/run/ballast"), 0o770)) }, "address: other users can change /run/ballast"},
		{"run directory of others for admin", func(s *site) { s.c.AdminAddress = "/run/mine/a.sock"; s.write("/run/mine/x") }, "admin_address: /run/mine has"},
		{"root below the sockets", func(s *site) {
			s.c.Root, s.c.Address, s.c.AdminAddress = "/srv/b/lib/root", "/srv/b/ballastd.sock", "/srv/b/admin.sock"
			s.usedRoot("/srv/b/lib/root")
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			tt.make(s)
			before := s.tree("/")
			err := Check(s.c, s.host)
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !errdefs.IsFailedPrecondition(err)):
				t.Errorf("got %v, want %q in it", err, tt.want)
			}
			if d := cmp.Diff(before, s.tree("/")); d != "" {
				t.Errorf("it changed (-before +after):\n%s", d)
			}
		})
	}
}

func TestEmpty(t *testing.T) {
	inNamespace(t)
	const root, run = "/var/lib/ballast", "/run/ballast"
	model := run + "/models/" + strings.Repeat("a", 64)
	for _, tt := range []struct {
		name string
		key  string
		make func(s *site)
		want Emptied
		err  string
		tree []string // of what is left in the directory; nil: it is gone
	}{
		{"nothing there", "root", func(*site) {}, Emptied{}, "", nil},
		{"never used", "root", func(s *site) { s.mkdir(root) }, Emptied{}, "", nil},
		{"used", "root", func(s *site) { s.usedRoot(root) }, Emptied{}, "", nil},
		{"names of others", "root", func(s *site) {
			s.usedRoot(root)
			s.write(root+"/notes/a", root+"/store.dbx", root+"/Objects/x")
			s.ok(os.Chmod(s.at(root+"/notes"), 0o750))
		}, Emptied{Left: []string{"Objects", "notes", "store.dbx"}, Kept: "it is not empty"}, "", []string{
			root + " drwxr-xr-x ", root + "/Objects drwxr-xr-x ", root + "/Objects/x -rw-r--r-- " + root + "/Objects/x",
			root + "/notes drwxr-x--- ", root + "/notes/a -rw-r--r-- " + root + "/notes/a", root + "/store.dbx -rw-r--r-- " + root + "/store.dbx",
		}},
		{"links inside", "root", func(s *site) {
			s.usedRoot(root)
			s.write("/precious/a")
			s.link(s.at("/precious"), root+"/store.db.link")
			s.link("../../../../precious", root+"/objects/sha256/ab/link")
		}, Emptied{}, "", nil},
		{"link to the root", "root", func(s *site) { s.usedRoot("/disk"); s.link("/disk", root) },
			Emptied{Kept: "it is a symbolic link to HOST/disk"}, "", []string{root + " Lrwxrwxrwx "}},
		{"mount at the root", "root", func(s *site) { s.mount(root); s.usedRoot(root); s.mkdir(root + "/lost+found") },
			Emptied{Kept: "a file system is mounted there"}, "", []string{root + " drwxr-xr-x ", root + "/lost+found drwxr-xr-x "}},
		{"another snapshotter", "root", func(s *site) { s.write(root+"/metadata.db", root+"/snapshots/1/x") },
			Emptied{Left: []string{"metadata.db", "snapshots"}, Kept: "it is not empty"}, "", []string{
				root + " drwxr-xr-x ", root + "/metadata.db -rw-r--r-- " + root + "/metadata.db", root + "/snapshots drwxr-xr-x ",
				root + "/snapshots/1 drwxr-xr-x ", root + "/snapshots/1/x -rw-r--r-- " + root + "/snapshots/1/x",
			}},
		{"sockets", "address", func(s *site) {
			s.socket(run + "/ballastd.sock")
			s.socket(run + "/ballastd.sock.new")
			s.socket(run + "/admin.sock")
			s.socket(run + "/holder.sock")
			s.socket(run + "/status/status.sock")
			s.socket(run + "/status/status.sock.new")
			s.socket(run + "/fleet/fleet.sock")
			s.mkdir(run + "/lazy")
			s.mkdir(model)
		}, Emptied{}, "", nil},
		{"names of others beside the sockets", "address", func(s *site) {
			s.socket(run + "/admin.sock")
			s.socket(run + "/other.sock")
			s.write(run+"/ballastd.sock", model+"/x", run+"/models/mine/y", run+"/lazy/z", run+"/status/status.sock")
		}, Emptied{Left: []string{"ballastd.sock", "other.sock", "lazy", "models", "status"}, Kept: "it is not empty"}, "", []string{
			run + " drwxr-xr-x ", run + "/ballastd.sock -rw-r--r-- " + run + "/ballastd.sock",
			run + "/lazy drwxr-xr-x ", run + "/lazy/z -rw-r--r-- " + run + "/lazy/z",
			run + "/models drwxr-xr-x ", model + " drwxr-xr-x ", model + "/x -rw-r--r-- " + model + "/x",
			run + "/models/mine drwxr-xr-x ", run + "/models/mine/y -rw-r--r-- " + run + "/models/mine/y",
			run + "/other.sock Srw------- ",
			run + "/status drwxr-xr-x ", run + "/status/status.sock -rw-r--r-- " + run + "/status/status.sock",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inNamespace(t)
			s := newSite(t)
			tt.make(s)
			got, err := s.dir(tt.key).Empty(s.host)
			if err != nil {
				t.Fatal(err)
			}
			tt.want.Kept = strings.Replace(tt.want.Kept, "HOST", s.host, 1)
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			var left []string
			if p := s.dir(tt.key).Path; exists(s.at(p)) {
				left = s.tree(p)
			}
			if d := cmp.Diff(tt.tree, left, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("left (-want +got):\n%s", d)
			}
			if exists(s.at("/precious")) && !exists(s.at("/precious/a")) {
				t.Error("a symbolic link was followed")
			}
		})
	}
}

func exists(p string) bool {
	_, err := os.Lstat(p)
	return err == nil
}

// Nothing is removed while something is mounted below.
func TestEmptyMounted(t *testing.T) {
	for key, p := range map[string]string{"root": "/var/lib/ballast/objects/sha256/ab", "address": "/run/ballast/models/" + strings.Repeat("b", 64)} {
		t.Run(key, func(t *testing.T) {
			inNamespace(t)
			s := newSite(t)
			s.usedRoot("/var/lib/ballast")
			s.socket("/run/ballast/admin.sock")
			s.mount(p)
			s.write(p + "/of others")
			before := s.tree("/")
			if _, err := s.dir(key).Empty(s.host); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), s.at(p)+" is mounted") {
				t.Errorf("got %v", err)
			}
			if d := cmp.Diff(before, s.tree("/")); d != "" {
				t.Errorf("it changed (-before +after):\n%s", d)
			}
		})
	}
}

// A shared directory is not emptied, even if a daemon has used it.
func TestEmptyShared(t *testing.T) {
	s := newSite(t)
	s.c.Root, s.c.Address = "/var/lib", "/run/ballastd.sock"
	s.usedRoot("/var/lib")
	l, err := net.Listen("unix", s.at("/run/ballastd.sock"))
	s.ok(err)
	defer l.Close()
	before := s.tree("/")
	for _, key := range []string{"root", "address"} {
		if got, err := s.dir(key).Empty(s.host); err != nil || got.Kept != "it is not empty" {
			t.Errorf("%s: %+v, %v", key, got, err)
		}
	}
	if d := cmp.Diff(before, s.tree("/")); d != "" {
		t.Errorf("it changed (-before +after):\n%s", d)
	}
}

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestFacadeClients pulls a model and an ordinary image in every way that containerd has, with each
// form of hosts.toml.
func TestFacadeClients(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
	}{
		{"registry", nil},
		{"default closed", []string{"_default"}},
		{"default open", []string{"_default", "--open"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := node.StartNode(t, node.Options{})
			host := "models.test"
			n.Upstream(t, host, n.Registry.Host)
			if tt.args != nil {
				for _, name := range []string{host, n.Registry.Host} {
					if err := os.RemoveAll(filepath.Join(n.HostsDir(), name)); err != nil {
						t.Fatal(err)
					}
				}
				out := n.Ballast(append([]string{"config", "hosts", "--write", "--hosts-dir", n.HostsDir()}, tt.args...)...)
				if out.Err != nil {
					t.Fatalf("%v\n%s", out.Err, out.Output())
				}
			}
			b := converttest.ModelPackRaw(converttest.Files(weights(230, 1<<20)))
			for _, way := range []string{"transfer", "local", "cri"} {
				n.Registry.Push(t, way+"/model", "1", artifact(b))
				n.Registry.Push(t, way+"/image", "1", node.Busybox(t))
			}
			pull := map[string]func(snapshotter, ref string) error{
				"transfer": func(s, ref string) error { return failed(n.Pull(s, ref)) },
				"local":    func(s, ref string) error { return failed(n.Pull(s, ref, "--local")) },
				"cri": func(_, ref string) error {
					_, err := n.CRI(t).Pull(ref, "")
					return err
				},
			}
			for way, pull := range pull {
				model, image := host+"/"+way+"/model:1", host+"/"+way+"/image:1"
				if err := pull("ballast", model); err != nil {
					t.Errorf("%s, model: %v", way, err)
				}
				if err := pull("overlayfs", image); err != nil {
					t.Errorf("%s, ordinary image: %v", way, err)
				}
				if !logged(t, n, "facade request", "/"+way+"/model/manifests/1", "status=200") || !logged(t, n, "facade request", "/"+way+"/image/manifests/1", "status=200") {
					t.Errorf("%s: the facade was not asked", way)
				}
				if way != "cri" { // which has its own namespace
					wantFiles(t, n, model, states(b))
				}
			}
		})
	}
}

func failed(r node.Result) error {
	if r.Err == nil {
		return nil
	}
	return fmt.Errorf("%w: %s", r.Err, r.Output())
}

// A user who binds the port while ballastd is stopped gets no secret, and cannot provide an image. Only
// the facade is affected, which is reported; afterwards everything works as before.
func TestFacadeSquatterGetsNothing(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	b := converttest.ModelPackRaw(converttest.Files(weights(231, 1<<20)))
	model := push(t, n, b)
	mustPull(t, n, "ballast", model)
	n.Registry.Push(t, "private/image", "1", node.Busybox(t))
	n.Registry.User, n.Registry.Password = "alice", "s3cret"
	image := n.Registry.Ref("private/image", "1")
	n.Ballastd.Stop(t)
	s := startSquatter(t, n.Facade)

	for _, flags := range [][]string{nil, {"--local"}} {
		out := n.Pull("overlayfs", image, append(flags, "--user", "alice:s3cret")...)
		wantError(t, out, "certificate signed by unknown authority")
	}
	cri := n.CRI(t)
	if id, err := cri.PullAs(image, "", &criapi.AuthConfig{Username: "alice", Password: "s3cret"}); err == nil {
		t.Errorf("CRI has pulled %s", id)
	}
	waitFor(t, "the squatter to print three connections", func() error {
		if seen := s.sightings(); len(seen) < 3 {
			return fmt.Errorf("it has printed %d", len(seen))
		}
		return nil
	})
	for _, one := range s.sightings() {
		if one.TLS == "" || one.TLS == "ok" {
			t.Errorf("the squatter saw %+v", one)
		}
	}

	// The daemon starts, shows its models, and reports the problem.
	n.StartBallastd(t)
	wantFiles(t, n, model, states(b))
	wantError(t, doctor(n), "facade", fmt.Sprintf("process %d", s.cmd.Process.Pid), "uid 65534", "ballastd.socket")
	if !strings.Contains(n.Metrics(), "\nballast_facade_up 0\n") {
		t.Error("the metric says that the facade answers")
	}
	if !logged(t, n, "level=ERROR", "the facade does not answer", "uid 65534") {
		t.Error("the log does not say who has the port")
	}
	s.stop()
	waitFor(t, "the facade", func() error {
		if !strings.Contains(n.Metrics(), "\nballast_facade_up 1\n") {
			return errors.New("it does not answer")
		}
		return nil
	})
	mustPull(t, n, "overlayfs", image, "--user", "alice:s3cret")
}

// A user of the node without the key gets nothing through the facade in any way, and cannot read the
// key.
func TestFacadeNobodyGetsNothing(t *testing.T) {
	docker := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(docker, []byte(`{"auths":{"secret.test":{"auth":"YWxpY2U6czNjcmV0"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	n := node.StartNode(t, node.Options{Config: fmt.Sprintf("[upstream]\ndocker_config = %q\n", docker)})
	n.Upstream(t, "secret.test", n.Registry.Host)
	b := converttest.ModelPackRaw(converttest.Files(weights(232, 1<<20)))
	n.Registry.Push(t, "team/model", "1", artifact(b))
	n.Registry.User, n.Registry.Password = "alice", "s3cret"
	letThrough(t, n)
	mustPull(t, n, "ballast", "secret.test/team/model:1", "--user", "alice:s3cret")

	n.Registry.Wire.Reset()
	url := n.FacadeURL("secret.test", "team/model", "1")
	printed := runNobody(t, "ask", url)
	t.Logf("%s", printed)
	for line := range strings.Lines(printed) {
		plain := strings.HasPrefix(line, "plain HTTP: status 403") && strings.Contains(line, "ballast doctor")
		if !plain && !strings.Contains(line, ": error ") {
			t.Errorf("nobody got %s", line)
		}
	}
	if got := n.Registry.Wire.Requests(); len(got) > 0 {
		t.Errorf("the registry was asked: %+v", got)
	}
	dir := filepath.Dir(n.CAFile())
	for line := range strings.Lines(runNobody(t, "read", n.CAFile(), n.ClientFile(), filepath.Join(dir, "authority.pem"), n.ConfigFile())) {
		if readable := strings.Contains(line, "<nil>"); readable != strings.HasPrefix(line, n.ConfigFile()) {
			t.Errorf("nobody reads %s", line)
		}
	}
}

// The keys are renewed, replaced and repaired while containerd runs, which is not notified.
func TestFacadeKeysChange(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	b := converttest.ModelPackRaw(converttest.Files(weights(233, 1<<20)))
	pulls := 0
	pull := func(after string) {
		t.Helper()
		pulls++
		repository := fmt.Sprintf("pull%d/model", pulls)
		n.Registry.Push(t, repository, "1", artifact(b))
		if out := n.Pull("ballast", n.Registry.Ref(repository, "1")); out.Err != nil {
			t.Errorf("after %s: %v\n%s", after, out.Err, out.Output())
		}
		if _, err := n.CRI(t).Pull(n.Registry.Ref(repository, "1"), ""); err != nil {
			t.Errorf("after %s, CRI: %v", after, err)
		}
	}
	read := func(path string) string {
		p, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(p)
	}
	restart := func() {
		n.Ballastd.Stop(t)
		n.StartBallastd(t)
	}
	pull("the first start")
	ca := read(n.CAFile())
	if out := n.Ballast("config", "rotate-ca"); out.Err != nil {
		t.Fatalf("%v\n%s", out.Err, out.Output())
	}
	if read(n.CAFile()) == ca {
		t.Error("the CA is the old one")
	}
	pull("rotate-ca")
	ca = read(n.CAFile())
	restart()
	pull("a restart")
	if err := os.Truncate(n.ClientFile(), 10); err != nil {
		t.Fatal(err)
	}
	restart()
	pull("damage of the client's key")
	if read(n.CAFile()) != ca {
		t.Error("the CA has changed")
	}
	if err := os.Remove(filepath.Join(filepath.Dir(n.CAFile()), "authority.pem")); err != nil {
		t.Fatal(err)
	}
	restart()
	pull("loss of the CA")
	if !logged(t, n, "level=WARN", "CA of the facade was lost and is created again") {
		t.Error("the log does not say that the CA was lost")
	}
	if out := doctor(n); out.Err != nil || !strings.Contains(out.Stdout, "the CA of the facade was created again") {
		t.Errorf("doctor: %v\n%s", out.Err, out.Output())
	}
}

// TestFacadePlain has a hosts.toml that names the facade with plain HTTP: errors name doctor, and doctor the command
// that writes the file again.
func TestFacadePlain(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	ref := push(t, n, converttest.ModelPackRaw(converttest.Files(weights(234, 1<<20))))
	file := filepath.Join(n.HostsDir(), n.Registry.Host, "hosts.toml")
	old := fmt.Sprintf(`# %[1]s through ballast. Written by "ballast config hosts %[1]s".
#
# Tags are resolved by the facade of ballastd only, so that a model always arrives converted.
# While ballastd is stopped, pulls by tag from this registry fail; they never give an
# unconverted manifest, which containerd would show as an empty directory. Layers come from
# the registry itself.
server = "http://%[1]s"
# Belongs to server: everything but "resolve".
capabilities = ["pull", "push"]

[host."http://%[2]s"]
  capabilities = ["pull", "resolve"]
`, n.Registry.Host, n.Facade)
	if err := os.WriteFile(file, []byte(old), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, flags := range [][]string{nil, {"--local"}} {
		wantError(t, n.Pull("ballast", ref, flags...), "ballast doctor")
	}
	if _, err := n.CRI(t).Pull(ref, ""); err == nil || !strings.Contains(err.Error(), "ballast doctor") {
		t.Errorf("CRI: %v", err)
	}
	if !logged(t, n, "level=WARN", "plain HTTP", "ballast doctor") {
		t.Error("the log does not say what to do")
	}
	wantError(t, doctor(n), file, "plain HTTP", "ballast config hosts "+n.Registry.Host+" --write --force --hosts-dir "+n.HostsDir())
	if out := n.Ballast("config", "hosts", n.Registry.Host, "--plain-http", "--write", "--force", "--hosts-dir", n.HostsDir()); out.Err != nil || !strings.Contains(out.Stderr, "wrote "+file) {
		t.Fatalf("%v\n%s", out.Err, out.Output())
	}
	mustPull(t, n, "ballast", ref)
	if out := doctor(n); out.Err != nil {
		t.Errorf("doctor: %v\n%s", out.Err, out.Output())
	}
}

// The service manager holds the port: no other process can bind it while ballastd is restarted, and a
// pull meanwhile waits and succeeds.
func TestFacadeSocketHeld(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	ref := push(t, n, converttest.ModelPackRaw(converttest.Files(weights(235, 1<<20))))
	n.Ballastd.Stop(t)
	l, err := net.Listen("tcp", n.Facade)
	if err != nil {
		t.Fatal(err)
	}
	if n.FacadeSocket, err = l.(*net.TCPListener).File(); err != nil {
		t.Fatal(err)
	}
	l.Close() // the file keeps the port
	defer n.FacadeSocket.Close()
	for range 2 {
		n.StartBallastd(t)
		n.Ballastd.Stop(t)
		if l, err := net.Listen("tcp", n.Facade); err == nil {
			l.Close()
			t.Error("the port can be bound between two daemons")
		}
	}
	pulled := make(chan node.Result, 1)
	go func() { pulled <- n.Pull("ballast", ref) }()
	waitFor(t, "the pull to knock", func() error { return knocking(n.Facade) })
	n.StartBallastd(t)
	out := <-pulled
	if strings.Contains(out.Output(), "connection error") && strings.Contains(out.Output(), "ballastd.sock") {
		out = n.Pull("ballast", ref) // the facade has answered; containerd had not yet connected to the snapshotter again
	}
	if out.Err != nil {
		t.Errorf("the pull that came while ballastd was down: %v\n%s", out.Err, out.Output())
	}
	var findings []struct{ Check, Status, Message string }
	if err := json.Unmarshal([]byte(n.Ballast("doctor", "-o", "json", "--containerd-config", n.ContainerdConfigFile()).Stdout), &findings); err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		if f.Check == "facade" && f.Status != "ok" {
			t.Errorf("%+v", f)
		}
	}
}

// knocking returns nil if a client has connected to an address and was not accepted.
func knocking(address string) error {
	p, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return err
	}
	_, port, _ := net.SplitHostPort(address)
	var number int
	if _, err := fmt.Sscan(port, &number); err != nil {
		return err
	}
	// sl, local address, remote address, state 01: established, on the side of the client.
	for line := range strings.Lines(string(p)) {
		f := strings.Fields(line)
		if len(f) > 3 && f[3] == "01" && strings.HasSuffix(f[2], fmt.Sprintf(":%04X", number)) {
			return nil
		}
	}
	return errors.New("no client has connected")
}

// TestFacadeLeavesLayers uses a registry that containerd can reach itself: layers of ordinary images
// come from there directly, and models through the facade.
func TestFacadeLeavesLayers(t *testing.T) {
	for _, args := range [][]string{nil, {"_default", "--open"}} {
		n := node.StartNode(t, node.Options{})
		host := n.Registry.Host
		if err := os.RemoveAll(filepath.Join(n.Dir, "ballast.d", host)); err != nil { // so that ballastd does not know it
			t.Fatal(err)
		}
		if args != nil {
			if err := os.RemoveAll(filepath.Join(n.HostsDir(), host)); err != nil {
				t.Fatal(err)
			}
			out := n.Ballast(append([]string{"config", "hosts", "--write", "--hosts-dir", n.HostsDir()}, args...)...)
			if out.Err != nil {
				t.Fatalf("%v\n%s", out.Err, out.Output())
			}
		}
		b := converttest.ModelPackRaw(converttest.Files(weights(231, 1<<20)))
		model := push(t, n, b)
		for way, flags := range map[string][]string{"transfer": nil, "local": {"--local"}} {
			image := node.Busybox(t)
			n.Registry.Push(t, way+"/image", "1", image)
			n.Registry.Wire.Reset()
			mustPull(t, n, "overlayfs", n.Registry.Ref(way+"/image", "1"), flags...)
			got := 0
			for _, r := range n.Registry.Wire.Requests() {
				if !strings.Contains(r.Path, "/blobs/") || r.Method != http.MethodGet {
					continue
				}
				if got++; strings.HasPrefix(r.UserAgent, "ballast") {
					t.Errorf("%v %s: ballastd got %s", args, way, r.Path)
				}
			}
			if got == 0 {
				t.Errorf("%v %s: containerd got nothing from the registry", args, way)
			}
			if rm := n.Ctr("images", "rm", "--sync", n.Registry.Ref(way+"/image", "1")); rm.Err != nil { // with its layers
				t.Fatalf("%v\n%s", rm.Err, rm.Output())
			}
			mustPull(t, n, "ballast", model, flags...)
			wantFiles(t, n, model, states(b))
		}
	}
}

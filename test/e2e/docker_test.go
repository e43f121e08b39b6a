package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/ballast-dev/ballast/test/e2e/systemctl"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

const (
	// dockerContainerd is the configuration of containerd in Docker's own packages.
	dockerContainerd = "disabled_plugins = [\"cri\"]\n"

	dockerSettings = "/etc/docker/daemon.json"
)

// A dockerMachine has Docker Engine beside containerd.
type dockerMachine struct {
	*machine
	env []string
}

func startDocker(t *testing.T, settings string, flags ...string) *dockerMachine {
	t.Helper()
	m := &dockerMachine{startMachine(t, dockerContainerd), []string{"DOCKER_CONFIG=" + t.TempDir()}}
	m.write(dockerSettings, settings, 0o600)
	m.write(filepath.Join(systemctl.Units, "docker.service"), systemctl.Unit("Docker Application Container Engine",
		node.Docker(t, "dockerd")+" --bridge=none --iptables=false --ip6tables=false --userland-proxy=false "+strings.Join(flags, " "), filepath.Dir(node.Runc(t))+":"+os.Getenv("PATH")), 0o644)
	t.Cleanup(func() {
		for _, id := range strings.Fields(m.try("ps", "--all", "--quiet").Stdout) {
			m.try("rm", "--force", id)
		}
		if t.Failed() {
			p, _ := os.ReadFile(filepath.Join(systemctl.State, "docker.service.log"))
			t.Logf("---- the log of Docker ----\n%s", p)
		}
		m.ok(systemctl.Stop("docker.service"))
		m.unmounted()
		m.ok(os.RemoveAll("/run/docker"))
	})
	m.systemctl("start", "docker")
	return m
}

// try runs docker.
func (m *dockerMachine) try(args ...string) node.Result {
	return node.Command(context.Background(), m.env, append([]string{node.Docker(m.t, "docker")}, args...)...)
}

// must runs docker, which must succeed, and returns its output.
func (m *dockerMachine) must(args ...string) string {
	m.t.Helper()
	out := m.try(args...)
	if out.Err != nil {
		m.t.Fatalf("docker %s: %v\n%s", strings.Join(args, " "), out.Err, out.Output())
	}
	return strings.TrimSpace(out.Stdout)
}

// unmounted unmounts what Docker has mounted, as a reboot does.
func (m *dockerMachine) unmounted() {
	for _, p := range m.mountsBelow("/var/lib/docker") {
		m.ok(unix.Unmount(p, unix.MNT_DETACH))
	}
}

// sums is a script that prints the digests of the files of a model at /m.
const sums = "find /m -type f | xargs sha256sum"

// want compares what sums prints with the files of a model.
func (m *dockerMachine) want(what, got string, b *converttest.Built) {
	m.t.Helper()
	files := map[string]string{}
	for line := range strings.Lines(got) {
		if f := strings.Fields(line); len(f) == 2 {
			files[strings.TrimPrefix(f[1], "/m/")] = f[0]
		}
	}
	wanted := map[string]string{}
	for p, f := range states(b) {
		if f.SHA256 != "" {
			wanted[p] = f.SHA256
		}
	}
	if d := cmp.Diff(files, wanted); d != "" {
		m.t.Errorf("%s: files (-got +want):\n%s", what, d)
	}
}

// TestDocker gives a Docker Engine that is in use ballast: models are pulled and mounted as images, while
// everything is restarted, images are pruned, and ordinary images work as before; and takes ballast away again.
func TestDocker(t *testing.T) {
	const theirs = `{"log-driver": "local"}` + "\n"
	m := startDocker(t, theirs)
	m.registry.Push(t, "busybox", "1", node.Busybox(t))
	busybox := m.registry.Ref("busybox", "1")
	models := slices.DeleteFunc(converttest.All(converttest.Files(weights(61, 3<<20))), func(b *converttest.Built) bool {
		return !slices.Contains([]string{"modelpack-raw", "docker-ai-gguf", "ollama-new", "kitops-gzip"}, b.Name)
	})
	ref := func(b *converttest.Built) string { return m.registry.Ref("models/"+b.Name, "1") }
	mount := func(b *converttest.Built) string { return "type=image,src=" + ref(b) + ",dst=/m" }
	sh := func(args ...string) []string {
		return append(append([]string{"run", "--network", "none"}, args[:len(args)-1]...), busybox, "sh", "-c", args[len(args)-1])
	}
	for _, b := range models {
		m.registry.Push(t, "models/"+b.Name, "1", artifact(b))
	}
	driver := func() string { return m.must("info", "--format", "{{.Driver}}") }
	names := func() string { return m.must("ps", "--all", "--format", "{{.Names}}") }
	images := func() int { return len(strings.Fields(m.must("images", "--quiet"))) }
	m.must(sh("--detach", "--stop-signal", "KILL", "--name", "former", "echo kept >/file; sleep 100000")...)
	if got := driver(); got != "overlayfs" {
		t.Fatalf("Docker has the storage driver %s", got)
	}
	before := m.etc()

	wantError(t, m.setup("--docker", "--registry", m.registry.Host), "1 containers run in Docker")
	m.must("stop", "--time", "0", "former")
	if out := m.mustSetup("--docker", "--registry", m.registry.Host); !strings.Contains(out, "does not list its 1 containers of the storage driver overlayfs") {
		t.Errorf("setup does not say what it hides: %s", out)
	}
	if got := driver(); got != "ballast" || names() != "" || images() != 1 {
		t.Errorf("the storage driver is %s, containers %q, %d images", got, names(), images())
	}
	m.checkIdle()

	for _, b := range models {
		m.must("pull", ref(b))
		m.want(b.Name, m.must(sh("--rm", "--mount", mount(b), sums)...), b)
	}
	if out := m.ctr("-n", "moby", "content", "ls", "--quiet"); out.Err != nil || strings.Contains(out.Stdout, digest.FromBytes(models[0].Files["model.gguf"].Data).String()) {
		t.Errorf("containerd has weights too: %v\n%s", out.Err, out.Output())
	}
	if got := m.must(sh("--rm", "echo ordinary >/file; cat /file")...); got != "ordinary" {
		t.Errorf("an ordinary image with ballast: %q", got)
	}
	build := t.TempDir()
	m.write(filepath.Join(build, "Dockerfile"), "FROM "+busybox+"\nRUN echo built >/file\n", 0o644)
	m.env = append(m.env, "DOCKER_BUILDKIT=0") // BuildKit needs a plugin
	m.must("build", "--quiet", "--network", "none", "--tag", "built", build)
	if got := m.must("run", "--rm", "--network", "none", "built", "cat", "/file"); got != "built" {
		t.Errorf("an image built with ballast has %q", got)
	}
	m.must("rmi", "built")
	if out := node.Command(t.Context(), nil, filepath.Join(m.dir, "ballast"), "doctor"); !strings.Contains(out.Stdout, "OK    docker: ballast is the storage driver") || strings.Contains(out.Stdout, "FAIL") {
		t.Errorf("doctor: %s", out.Output())
	}

	// Restarts and a prune, while a container reads.
	b := models[0]
	m.must(sh("--detach", "--stop-signal", "KILL", "--name", "app", "--mount", mount(b), "sleep 100000")...)
	reads := func(when string) { t.Helper(); m.want(when, m.must("exec", "app", "sh", "-c", sums), b) }
	m.systemctl("restart", "containerd")
	reads("containerd was restarted")
	m.systemctl("restart", "ballastd")
	reads("ballastd was restarted")
	m.must("image", "prune", "--all", "--force")
	if got := images(); got != 1 {
		t.Errorf("%d images after a prune, want that of the container", got)
	}
	reads("images were pruned")
	m.systemctl("restart", "docker")
	m.must("start", "app")
	reads("Docker was restarted")
	m.must("pull", ref(b))
	if got := m.must(sh("--rm", "--mount", mount(b)+",image-subpath=tokenizer", "ls /m")...); got != "vocab.json" {
		t.Errorf("a directory of a model: %q", got)
	}
	wantError(t, m.setup("--remove"), "moby/", "docker rm")

	// After a reboot, Docker does not mount the images of its containers again. ballast cannot know it.
	m.systemctl("stop", "docker")
	m.unmounted()
	m.systemctl("start", "docker")
	m.must("start", "app")
	if got := m.must("exec", "app", "find", "/m", "-type", "f"); got != "" {
		t.Errorf("Docker mounts images again after a reboot: change docker.md\n%s", got)
	}
	m.must("rm", "--force", "app")
	m.must("pull", ref(b))
	m.must(sh("--detach", "--stop-signal", "KILL", "--name", "app", "--mount", mount(b), "sleep 100000")...)
	reads("a new container after a reboot")
	m.must("rm", "--force", "app")

	// What Docker cannot do with a model.
	origin := m.registry.Host + "/models/" + b.Name + "@" + b.Digest().String()
	m.must("pull", origin)
	wantError(t, m.try(append([]string{"run", "--rm", "--network", "none", "--mount", "type=image,src=" + origin + ",dst=/m"}, busybox, "true")...), "in its original form", "@sha256:")
	open := node.StartRegistry(t, t.TempDir())
	open.Push(t, "team/model", "1", artifact(b))
	m.must("pull", open.Ref("team/model", "1"))
	wantError(t, m.try("run", "--rm", "--network", "none", "--mount", "type=image,src="+open.Ref("team/model", "1")+",dst=/m", busybox, "true"), "a snapshot without layers is refused")
	m.must("tag", ref(b), m.registry.Host+"/copy/model:1")
	wantError(t, m.try("push", m.registry.Host+"/copy/model:1"), "content digest", "not found")
	m.systemctl("stop", "ballastd")
	wantError(t, m.try("pull", busybox), "connection refused")
	wantError(t, m.try(sh("--rm", "true")...), "ballastd.sock")
	m.systemctl("start", "ballastd")

	// The removal, for which what Docker has left is ended.
	out := m.setup("--remove")
	wantError(t, out, "ctr -n moby leases rm --sync ")
	_, rest, _ := strings.Cut(out.Output(), "ctr -n moby leases rm --sync ")
	lease, _, _ := strings.Cut(rest, ")")
	if out := m.ctr("-n", "moby", "leases", "rm", "--sync", lease); out.Err != nil {
		t.Fatal(out.Output())
	}
	m.mustSetup("--remove")
	if d := cmp.Diff(before, m.etc()); d != "" {
		t.Errorf("left (-before +after):\n%s", d)
	}
	if got := driver(); got != "overlayfs" || names() != "former" || !strings.Contains(m.must("images"), busybox) {
		t.Errorf("the storage driver is %s, containers %q, images:\n%s", got, names(), m.must("images"))
	}
	m.must("start", "former")
	if got := m.must("exec", "former", "cat", "/file"); got != "kept" {
		t.Errorf("the former container has %q", got)
	}
	m.must(sh("--rm", "true")...)
}

// TestDockerUndone has a Docker that does not start with the storage driver of setup: all of setup is undone.
func TestDockerUndone(t *testing.T) {
	m := startDocker(t, "{}\n", "--storage-driver=overlayfs")
	before := m.etc()
	wantError(t, m.setup("--docker", "--registry", m.registry.Host), "dockerd does not start", "everything was undone")
	if d := cmp.Diff(before, m.etc()); d != "" {
		t.Errorf("left (-before +after):\n%s", d)
	}
	if got := m.must("info", "--format", "{{.Driver}}"); got != "overlayfs" {
		t.Errorf("the storage driver is %s", got)
	}
}

// TestDockerFormerStore has a Docker with a store of its own, which setup replaces by force only, and a removal brings
// back with what is in it.
func TestDockerFormerStore(t *testing.T) {
	m := startDocker(t, `{"features": {"containerd-snapshotter": false}}`)
	m.registry.Push(t, "busybox", "1", node.Busybox(t))
	busybox := m.registry.Ref("busybox", "1")
	m.must("run", "--name", "former", "--network", "none", busybox, "sh", "-c", "true")
	there := func() string { return m.must("images", "--quiet") + " " + m.must("ps", "--all", "--quiet") }
	before := there()
	wantError(t, m.setup("--docker", "--registry", m.registry.Host), "containerd-snapshotter = false", "--force")
	if out := m.mustSetup("--docker", "--registry", m.registry.Host, "--force"); !strings.Contains(out, "does not list its images of the storage driver overlay2") {
		t.Errorf("setup does not say what it hides: %s", out)
	}
	if got := there(); got != " " {
		t.Errorf("Docker lists %q", got)
	}
	m.must("run", "--rm", "--network", "none", busybox, "sh", "-c", "true")
	m.mustSetup("--remove")
	if got := there(); got != before {
		t.Errorf("Docker lists %q, want %q", got, before)
	}
}

// etc returns the files below /etc, see tree.
func (m *dockerMachine) etc() map[string]string {
	found := m.tree()
	for p := range found {
		if !strings.HasPrefix(p, "/etc/") {
			delete(found, p)
		}
	}
	return found
}

// TestDockerPrivate pulls a private model: Docker gives the facade no credentials, so ballastd needs them.
func TestDockerPrivate(t *testing.T) {
	m := startDocker(t, "{}")
	private := node.StartRegistry(t, t.TempDir())
	private.User, private.Password = "alice", aliceSecret
	node.Belongs(aliceSecret, private.Host)
	b := converttest.ModelPackRaw(converttest.Files(weights(62, 1<<20)))
	private.Push(t, "team/model", "1", artifact(b))
	private.Push(t, "busybox", "1", node.Busybox(t))
	model, image := private.Ref("team/model", "1"), private.Ref("busybox", "1")
	m.mustSetup("--docker", "--registry", private.Host)
	wantError(t, m.try("pull", model), "pull access denied")
	m.must("login", "--username", "alice", "--password", aliceSecret, private.Host)
	wantError(t, m.try("pull", model), "pull access denied")
	wantError(t, m.try("pull", image), "pull access denied")
	m.write(machineSettings, fmt.Sprintf("version = 1\n[facade]\nlisten = %q\n[upstream]\ndocker_config = %q\nshare_credentials = [%q]\n",
		m.facade, strings.TrimPrefix(m.env[0], "DOCKER_CONFIG=")+"/config.json", private.Host), 0o644)
	m.systemctl("restart", "ballastd")
	m.must("pull", model)
	m.must("pull", image)
	m.want("private", m.must("run", "--rm", "--network", "none", "--mount", "type=image,src="+model+",dst=/m", image, "sh", "-c", sums), b)
}

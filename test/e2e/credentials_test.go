package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The credentials of two tenants, each for its own registries.
const (
	aliceSecret = "pull-secret-of-alice"
	nodeSecret  = "docker-config-of-root"
)

// privateRegistry starts a registry that requires credentials for everything, and configures it on the
// node.
func privateRegistry(t *testing.T, n *node.Node, name, user, password string) *node.Registry {
	t.Helper()
	r := node.StartRegistry(t, t.TempDir())
	r.User, r.Password = user, password
	n.Upstream(t, name, r.Host)
	return r
}

// The node has credentials for a registry. Pulls without credentials get neither models nor ordinary
// images from it, before and after a prefetch with the credentials of the node.
func TestNodeCredentials(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	ops := privateRegistry(t, n, "ops.test", "root", nodeSecret)
	n.Login(t, "ops.test", "root", nodeSecret)
	b := converttest.ModelPackRaw(converttest.Files(weights(230, 1<<20)))
	ops.Push(t, "team/model", "1", artifact(b))
	ops.Push(t, "team/image", "1", node.Busybox(t))
	const model, image = "ops.test/team/model:1", "ops.test/team/image:1"
	pods := n.CRI(t)
	refused := func(when string) {
		t.Helper()
		for _, ref := range []string{model, image} {
			if out := n.Pull("ballast", ref); out.Err == nil {
				t.Errorf("%s: ctr pulled %s without credentials", when, ref)
			}
			if _, err := pods.Pull(ref, ""); err == nil {
				t.Errorf("%s: a pod without a secret pulled %s", when, ref)
			}
		}
		ops.Wire.Reset()
	}
	refused("before")
	if out := n.Ballast("prefetch", model); out.Err != nil {
		t.Fatalf("prefetch: %v\n%s", out.Err, out.Output())
	}
	if !complete(n, b.Files["model.gguf"].Data) {
		t.Fatal("the prefetch fetched nothing; the test proves nothing")
	}
	refused("after a prefetch")
	n.Ballastd.Stop(t)
	n.StartBallastd(t)
	refused("after a restart")
	// The rest of the prefetched model is fetched with the credentials of the node.
	if err := os.Remove(object(n, digest.FromBytes(b.Files["model.gguf"].Data))); err != nil {
		t.Fatal(err)
	}
	if out := n.Ballast("verify", "--repair"); out.Err != nil || !complete(n, b.Files["model.gguf"].Data) {
		t.Errorf("repair of what is pinned: %v\n%s", out.Err, out.Output())
	}
	mustPull(t, n, "ballast", model, "--user", "root:"+nodeSecret)
	wantFiles(t, n, model, states(b))
	noSecrets(t, n, nodeSecret)
}

// The configuration can allow all pulls to use the node's credentials for a host.
func TestSharedCredentials(t *testing.T) {
	n := node.StartNode(t, node.Options{Config: "[upstream]\nshare_credentials = [\"ops.test\"]\n"})
	ops := privateRegistry(t, n, "ops.test", "root", nodeSecret)
	n.Login(t, "ops.test", "root", nodeSecret)
	b := converttest.ModelPackRaw(converttest.Files(weights(231, 1<<20)))
	ops.Push(t, "team/model", "1", artifact(b))
	mustPull(t, n, "ballast", "ops.test/team/model:1")
	wantFiles(t, n, "ops.test/team/model:1", states(b))
}

// noSecrets fails the test if a secret is in the log or anywhere below the root of ballastd.
func noSecrets(t *testing.T, n *node.Node, secrets ...string) {
	t.Helper()
	look := func(path string) error {
		p, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // temporary files come and go
		}
		if err != nil {
			return err
		}
		for _, s := range secrets {
			if bytes.Contains(p, []byte(s)) {
				t.Errorf("%s has %s", path, s)
			}
		}
		return nil
	}
	if err := look(filepath.Join(n.Dir, "ballastd.log")); err != nil {
		t.Error(err)
	}
	err := filepath.WalkDir(n.Root(), func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case path == filepath.Join(n.Root(), "lazy"), path == filepath.Join(n.Root(), "objects"):
			return fs.SkipDir
		case e.Type().IsRegular():
			return look(path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	shown := map[string]string{"/metrics": n.Metrics()}
	for _, path := range []string{"/v1/health", "/v1/images", "/v1/status"} {
		shown[path] = adminAnswer(t, n, path)
	}
	cmds := [][]string{{"ls", "-o", "json"}, {"pin", "ls", "-o", "json"}, {"df", "-o", "json"}}
	for _, name := range strings.Fields(ballast(t, n, "ls", "-q")) {
		cmds = append(cmds, []string{"inspect", "-o", "json", name})
	}
	for _, cmd := range cmds {
		shown["ballast "+strings.Join(cmd, " ")] = n.Ballast(cmd...).Output()
	}
	for what, out := range shown {
		for _, s := range secrets {
			if strings.Contains(out, s) {
				t.Errorf("%s has %s: %s", what, s, out)
			}
		}
	}
}

// adminAnswer returns what the admin socket answers.
func adminAnswer(t *testing.T, n *node.Node, path string) string {
	t.Helper()
	resp, err := n.AdminClient().Get("http://admin" + path)
	if err != nil {
		t.Fatal(err)
	}
	p, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", path, resp.Status, err)
	}
	return string(p)
}

// privateLazy pulls a private model with a pull secret and mounts it before it is complete.
func privateLazy(t *testing.T, n *node.Node, size int) (*lazyModel, *node.Registry) {
	t.Helper()
	m := &lazyModel{node: n, ref: "private.test/a/model:1", want: weights(232, size)}
	src := push(t, n, converttest.ModelPackRaw(converttest.Files(m.want)))
	r := privateRegistry(t, n, "private.test", "alice", aliceSecret)
	n.Login(t, "private.test", "alice", aliceSecret)
	if out := n.Ballast("convert", src, m.ref); out.Err != nil {
		t.Fatalf("convert: %v\n%s", out.Err, out.Output())
	}
	n.Logout(t)
	r.Wire.Link(4<<20, 5*time.Millisecond)
	mustPull(t, n, "ballast", m.ref, "--user", "alice:"+aliceSecret)
	m.path = filepath.Join(rootOf(t, n, m.ref), "model.gguf")
	if err := m.read(20<<20, 4096); err != nil {
		t.Fatal(err)
	}
	return m, r
}

// sealed returns the files in the directory of sealed secrets, and checks that only root can read it.
func sealed(t *testing.T, n *node.Node) (names []string) {
	t.Helper()
	dir := filepath.Join(n.Root(), "secrets")
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%s: %v, %v", dir, info.Mode(), err)
	}
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", e.Name(), info.Mode(), err)
		}
		names = append(names, e.Name())
	}
	return names
}

// A private model is read before it is complete, the daemon is stopped and killed, and reads continue
// with the sealed secret; the file is removed when the model is complete.
func TestSecretAfterRestart(t *testing.T) {
	n := node.StartNode(t, node.Options{Config: slowBackground})
	m, r := privateLazy(t, n, 96<<20)
	if l := sealed(t, n); len(l) != 2 {
		t.Errorf("sealed: %v, want the key and one", l)
	}
	n.Ballastd.Stop(t)
	n.StartBallastd(t)
	if err := m.read(60<<20, 4096); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	// The secret changes. containerd has the image, so it requests only the manifest.
	r.Password = aliceSecret + "-renewed"
	mustPull(t, n, "ballast", m.ref, "--user", "alice:"+r.Password)
	n.Ballastd.Kill()
	n.StartBallastd(t)
	if err := m.read(90<<20, 4096); err != nil {
		t.Errorf("after a crash: %v", err)
	}
	if m.complete() {
		t.Error("the model was complete too early; the test proves nothing")
	}
	noSecrets(t, n, aliceSecret)
	r.Wire.Link(0, 0)
	m.readAll(t)
	waitFor(t, "the secret to be removed", func() error {
		if l := sealed(t, n); !slices.Equal(l, []string{"key"}) {
			return fmt.Errorf("sealed: %v", l)
		}
		return nil
	})
}

// With keep_secrets = false no secret is on the disk. After a restart missing bytes cannot be read, the
// log says why, and a pull with the secret repairs it.
func TestSecretsInMemoryOnly(t *testing.T) {
	n := node.StartNode(t, node.Options{Config: "[upstream]\nkeep_secrets = false\n" + slowBackground})
	m, r := privateLazy(t, n, 96<<20)
	if l := sealed(t, n); l != nil {
		t.Errorf("sealed: %v, want nothing", l)
	}
	n.Ballastd.Stop(t)
	n.StartBallastd(t)
	if err := m.read(90<<20, 4096); !errors.Is(err, syscall.EIO) {
		t.Errorf("after a restart: got %v, want EIO", err)
	}
	waitFor(t, "the log to say why", func() error {
		if !logged(t, n, "no credentials for private.test/a/model", "imagePullSecrets") {
			return errors.New("it does not")
		}
		return nil
	})
	r.Wire.Link(0, 0)
	mustPull(t, n, "ballast", m.ref, "--user", "alice:"+aliceSecret)
	waitFor(t, "the rest to come after another pull", func() error {
		// It may join an attempt that began without the secret.
		return pullRest(n, m.ref)
	})
	m.awaitComplete(t)
}

// An attacker gives the facade credentials for thousands of repositories. Those of other users are not
// evicted.
func TestStrangerEvictsNoSecrets(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	pause(t, n)
	m, r := privateLazy(t, n, 48<<20)
	ordinary := node.Busybox(t)
	evil := node.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Authorization") == "" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", ordinary.MediaType)
		w.Write(ordinary.Manifest)
	}))
	n.Upstream(t, "evil.test", evil)
	const evilSecret = "secret-of-the-stranger"
	node.Belongs(evilSecret, evil)
	c, login := n.FacadeClient(t), url.UserPassword("u", evilSecret)
	for i := range 5000 {
		status, _ := askFacadeBy(t, n, c, http.MethodHead, fmt.Sprintf("r%d/manifests/1", i), "evil.test", login)
		if status != http.StatusOK {
			t.Fatalf("request %d of the stranger: status %d", i, status)
		}
	}
	if m.complete() {
		t.Error("the model was complete too early; the test proves nothing")
	}
	// After a failure the sources are made again, with the current credentials, before the next
	// attempt.
	restore := r.Wire.Add(node.Fault{Match: node.AnyBlob, Status: http.StatusNotFound})
	r.Wire.Link(0, 0)
	resume(t, n)
	waitFor(t, "the daemon to try again", func() error {
		if !logged(t, n, "the rest of a model", "trying again", "wait=2s") {
			return errors.New("not yet")
		}
		return nil
	})
	restore()
	if err := pullRest(n, m.ref); err != nil {
		t.Errorf("the rest: %v", err)
	}
	m.awaitComplete(t)
}

// The annotation of an attacker's image names the repository of another tenant as its source. Nothing
// is fetched there, neither with that tenant's secret, which the node has, nor with the credentials of
// the node.
func TestSpoofedReference(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	private := privateRegistry(t, n, "private.test", "alice", aliceSecret)
	n.Login(t, "private.test", "alice", aliceSecret)
	private.Push(t, "a/model", "1", artifact(converttest.ModelPackRaw(converttest.Files(weights(233, 1<<20)))))
	hidden := weights(234, 1<<20) // not on the node
	private.PushBlob(t, "a/model", digest.FromBytes(hidden), int64(len(hidden)), bytes.NewReader(hidden))
	if _, err := n.CRI(t).PullAs("private.test/a/model:1", "", &cri.AuthConfig{Username: "alice", Password: aliceSecret}); err != nil {
		t.Fatal(err)
	}
	d := digest.FromBytes(hidden)
	table := &filetable.Table{
		Version: filetable.Version,
		Origin:  filetable.Origin{Format: "modelpack", Digest: digest.FromString("spoof"), Mapping: 1},
		Files: []filetable.File{{Path: "stolen", Type: filetable.TypeReg, Mode: 0o644, Size: int64(len(hidden)), Digest: d,
			Source: &filetable.Source{Blob: d, Size: int64(len(hidden))}}},
		Blobs: []filetable.Blob{{Digest: d, Size: int64(len(hidden))}},
	}
	newStranger(t, n, "spoof.evil", annotatedImage(t, table, map[string]string{
		"containerd.io/snapshot/cri.image-ref": "private.test/a/model:1",
	}))
	private.Wire.Reset()
	for _, flags := range [][]string{nil, {"--local"}} {
		if out := n.Pull("ballast", "spoof.evil/x:1", flags...); out.Err == nil {
			t.Errorf("%v: the pull succeeded", flags)
		}
	}
	if _, err := n.CRI(t).Pull("spoof.evil/x:1", ""); err == nil {
		t.Error("a pod pulled it")
	}
	for _, r := range private.Wire.Requests() {
		t.Errorf("the private registry was asked: %s %s", r.Method, r.Path)
	}
}

// A carton is prefetched from a signed URL. The signature is in no log, file or output, and the carton
// is known by its URL nevertheless.
func TestSignedCarton(t *testing.T) {
	const signature = "s1gnature-of-the-carton"
	c := converttest.GoodCarton(weights(235, 2<<20))
	host := node.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("sig") != signature {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(c.Bytes()))
	}))
	node.Belongs(signature, host)
	n := node.StartNode(t, node.Options{Config: fmt.Sprintf("[upstream]\nallow_hosts = [%q]\n", host)})
	url := "carton+http://" + host + "/x.carton?sig=" + signature
	for _, args := range [][]string{{"prefetch", url}, {"inspect", url}, {"unpin", url}, {"pin", url}, {"verify", url}, {"prefetch", url}} {
		if out := n.Ballast(args...); out.Err != nil {
			t.Errorf("ballast %v: %v\n%s", args[0], out.Err, out.Output())
		}
	}
	if out := n.Ballast("ls"); !strings.Contains(out.Stdout, "/x.carton?sha256-") {
		t.Errorf("ls: %s", out.Output())
	}
	noSecrets(t, n, signature)
	n.Ballastd.Stop(t)
	n.StartBallastd(t)
	if err := os.Remove(object(n, digest.FromBytes(weights(235, 2<<20)))); err != nil {
		t.Fatal(err)
	}
	wantError(t, n.Ballast("verify", "--repair", url))
	if !logged(t, n, "archive left out", "prefetch the model again") {
		t.Error("the log does not say what to do")
	}
	if out := n.Ballast("prefetch", url); out.Err != nil {
		t.Errorf("prefetch again: %v\n%s", out.Err, out.Output())
	}
	noSecrets(t, n, signature)
}

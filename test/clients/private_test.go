package clients

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// private starts a registry that gives nothing without a password, and closes it on a node. The test fails if another
// server gets the password, or it gets that of another one.
func private(t *testing.T, n *node.Node, password string) *node.Registry {
	t.Helper()
	r := node.StartRegistry(t, t.TempDir())
	r.User, r.Password = "alice", password
	node.Belongs(password, r.Host)
	n.Upstream(t, r.Host, r.Host)
	return r
}

// pushTo pushes a model to a registry and returns its reference.
func pushTo(t *testing.T, r *node.Registry, b *converttest.Built) string {
	t.Helper()
	r.Push(t, "team/"+b.Name, "1", node.Artifact{Manifest: b.Manifest, MediaType: b.MediaType, Blobs: b.Blobs})
	return r.Ref("team/"+b.Name, "1")
}

// TestNerdctlLogin pulls models and an image of two registries with different passwords after "nerdctl login", as
// containerd.md says, and nothing without.
func TestNerdctlLogin(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	c := newNerdctl(t, n, "ballast")
	one, two := private(t, n, "password-of-one"), private(t, n, "password-of-two")
	config := filepath.Join(n.Dir, "docker", "config.json")
	for _, dir := range []string{filepath.Dir(config), filepath.Join(n.Dir, "programs")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(node.Binary(t, "ballast"), filepath.Join(n.Dir, "programs", "docker-credential-ballast")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, []byte(`{"credHelpers": {"`+n.Facade+`": "ballast"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	c.env = []string{"DOCKER_CONFIG=" + filepath.Dir(config), "PATH=" + filepath.Join(n.Dir, "programs") + ":" + os.Getenv("PATH")}
	refused := func(when, ref string) {
		t.Helper()
		if out := node.Command(t.Context(), append(n.Env(), c.env...), append(c.flags, "pull", "--quiet", ref)...); out.Err == nil || !strings.Contains(out.Output(), "no credentials for ") {
			t.Errorf("%s: pull of %s: got %v, want a refusal\n%s", when, ref, out.Err, out.Output())
		}
	}
	built := models()
	first, second := pushTo(t, one, built[0]), pushTo(t, two, built[1])
	refused("before the login", first)
	c.run("login", "--username", one.User, "--password", one.Password, one.Host)
	c.run("pull", "--quiet", first)
	same(t, "of the first registry", c.files(first), sums(built[0]))
	refused("after the login to another registry", second)
	c.run("login", "--username", two.User, "--password", two.Password, two.Host)
	c.run("pull", "--quiet", second)
	same(t, "of the second registry", c.files(second), sums(built[1]))

	// The rest of the formats, and an image, whose layers containerd gets from the registry itself.
	for _, b := range built[2:] {
		ref := pushTo(t, one, b)
		c.run("pull", "--quiet", ref)
		same(t, b.Name, c.files(ref), sums(b))
	}
	two.Push(t, "team/busybox", "1", node.Busybox(t))
	if got := c.container("--rm", two.Ref("team/busybox", "1"), "sh", "-c", "echo run"); got != "run\n" {
		t.Errorf("an image: %q", got)
	}

	// Who pulls without the config is refused as before, and so is the user after a logout.
	if out := n.Pull("ballast", first); out.Err == nil {
		t.Error("ctr pulled a private model without credentials")
	}
	c.run("rmi", first)
	c.run("logout", one.Host)
	refused("after the logout", first)
	var left struct {
		CredHelpers map[string]string
		Auths       map[string]any
	}
	if p, err := os.ReadFile(config); err != nil || json.Unmarshal(p, &left) != nil || left.CredHelpers[n.Facade] != "ballast" || len(left.Auths) != 1 {
		t.Errorf("%s: %+v, %v", config, left, err)
	}
	for _, file := range []string{"ballastd.log", "containerd.log"} {
		p, err := os.ReadFile(filepath.Join(n.Dir, file))
		if err != nil || strings.Contains(string(p), "password-of-") || strings.Contains(string(p), "ballast-login.") {
			t.Errorf("%s has a password, or cannot be read: %v", file, err)
		}
	}
}

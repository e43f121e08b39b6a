package clients

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// TestCopiesToPrivate has other clients log in and copy a model into a private registry, from which ctr pulls and
// mounts each copy.
func TestCopiesToPrivate(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	r := private(t, n, "password-of-copies")
	b := converttest.ModelPackRaw(converttest.Files(weights(1<<20 + 3)))
	src := convert(t, n, directory(t, b), "private", "--as", "modelpack")
	config := []string{"DOCKER_CONFIG=" + t.TempDir(), "REGISTRY_AUTH_FILE=" + filepath.Join(t.TempDir(), "auth.json")}
	login := []string{"--username", r.User, "--password", r.Password}
	for name, do := range map[string]func(dst string){
		"oras": func(dst string) {
			run(t, config, append([]string{tool(t, "oras"), "login", "--plain-http", r.Host}, login...)...)
			run(t, config, tool(t, "oras"), "cp", "--from-plain-http", "--to-plain-http", src, dst)
			dir := t.TempDir()
			run(t, config, tool(t, "oras"), "pull", "--plain-http", "--output", dir, dst)
			same(t, "oras pull", withoutOrigin(onDisk(t, dir)), sums(b))
		},
		"crane": func(dst string) {
			run(t, config, append([]string{tool(t, "crane"), "auth", "login", r.Host}, login...)...)
			run(t, config, tool(t, "crane"), "copy", "--insecure", src, dst)
		},
		"skopeo": func(dst string) {
			run(t, config, append([]string{"skopeo", "login", "--tls-verify=false", r.Host}, login...)...)
			run(t, config, "skopeo", "copy", "--quiet", "--preserve-digests", "--src-tls-verify=false", "--dest-tls-verify=false", "docker://"+src, "docker://"+dst)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dst := r.Ref("copies/"+name, "1")
			do(dst)
			if out := n.Pull("ballast", dst); out.Err == nil {
				t.Error("ctr pulled it without credentials")
			}
			same(t, "the copy", withoutOrigin(mounted(t, n, "ballast", dst, "--user", r.User+":"+r.Password)), sums(b))
		})
	}
}

// TestPodmanPrivate pulls an image of a model from a private registry after "podman login", as ctr does.
func TestPodmanPrivate(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	r := private(t, n, "password-of-podman")
	n.Login(t, r.Host, r.User, r.Password)
	b := converttest.ModelPackRaw(converttest.Files(weights(1<<20 + 3)))
	ref := r.Ref("team/image", "1")
	if out := n.Ballast("convert", directory(t, b), ref, "--as", "image"); out.Err != nil {
		t.Fatalf("ballast convert: %v\n%s", out.Err, out.Output())
	}
	config := []string{"REGISTRY_AUTH_FILE=" + filepath.Join(t.TempDir(), "auth.json")}
	podman := func(args ...string) string {
		t.Helper()
		return run(t, config, append([]string{"podman", "--root", filepath.Join(n.Dir, "podman"), "--runroot", filepath.Join(n.Dir, "podman-run"), "--storage-driver", "vfs"}, args...)...)
	}
	podman("login", "--tls-verify=false", "--username", r.User, "--password", r.Password, r.Host)
	podman("pull", "--quiet", "--tls-verify=false", ref)
	dir := strings.TrimSpace(podman("image", "mount", ref))
	defer podman("image", "umount", ref)
	same(t, "podman image mount", onDisk(t, dir), sums(b))
	same(t, "ctr", mounted(t, n, "ballast", ref, "--user", r.User+":"+r.Password), sums(b))
}

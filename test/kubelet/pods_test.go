package kubelet

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"golang.org/x/sys/unix"
)

// The hosts of references.
const (
	cartonHost  = "carton.example"
	ollamaHost  = "registry.ollama.ai"
	stoppedHost = "stopped.example"
)

// TestPods runs pods concurrently on one node: all formats, the ways to mount, the pull policies,
// private registries, and invalid pods.
func TestPods(t *testing.T) {
	carton := converttest.GoodCarton(weights(1, 1<<20))
	files := node.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(carton.Bytes()))
	}))
	k := startNode(t, node.Options{Config: node.AllowLoopback + fmt.Sprintf(
		"[[carton]]\nregistry = %q\nurl = \"http://%s/{repository}/{tag}.carton\"\nallow_http = true\n"+
			"[[layout]]\nmatch = \"*/%s/*\"\nprefix = \"models\"\n", cartonHost, files, placed)}, nil, withCredentials)
	k.node.Upstream(t, cartonHost, files)
	k.node.Upstream(t, ollamaHost, node.StartOllama(t, k.node.Registry).Host)

	t.Run("all", func(t *testing.T) {
		t.Run("formats", func(t *testing.T) { t.Parallel(); testFormats(t, k, carton) })
		t.Run("shared", func(t *testing.T) { t.Parallel(); testShared(t, k) })
		t.Run("policies", func(t *testing.T) { t.Parallel(); testPolicies(t, k) })
		t.Run("private", func(t *testing.T) { t.Parallel(); testPrivate(t, k) })
		t.Run("kserve", func(t *testing.T) { t.Parallel(); testKServe(t, k) })
		t.Run("refused", func(t *testing.T) { t.Parallel(); testRefused(t, k) })
		t.Run("read ahead", func(t *testing.T) { t.Parallel(); testReadAhead(t, k) })
	})
}

// testFormats has a pod for each family of formats, with a volume for each of its forms.
func testFormats(t *testing.T, k *kubelet, carton converttest.Carton) {
	pods, want := map[string]*pod{}, map[string]map[string]map[string]node.FileState{}
	add := func(family, name, ref string, files map[string]node.FileState) {
		p, ok := pods[family]
		if !ok {
			made := k.pod("format-"+family, "", "")
			made.Spec.Volumes, made.Spec.Containers[0].Mounts = nil, nil
			p, pods[family], want[family] = &made, &made, map[string]map[string]node.FileState{}
		}
		dir := "/models/" + name
		p.Spec.Volumes = append(p.Spec.Volumes, volume{name, imageVolume{ref, "IfNotPresent"}})
		p.Spec.Containers[0].Mounts = append(p.Spec.Containers[0].Mounts, mount{Volume: name, Path: dir})
		want[family][dir] = files
	}
	all := converttest.Files(weights(2, 1<<20+1))
	for _, b := range converttest.All(all) {
		add(string(b.Format), b.Name, push(t, k, b), states(b))
	}
	library := converttest.Ollama(converttest.Files(weights(3, 1<<20)), converttest.OllamaConfigNew)
	k.node.Registry.Push(t, "library/tiny", "1b", artifact(library))
	add("ollama", "library", ollamaHost+"/library/tiny:1b", states(library))
	add("carton", "url", cartonHost+"/org/tiny:v1", statesOf(carton.Model()))
	ahead := converttest.ModelPackRaw(converttest.Files(weights(4, 1<<20)))
	ahead.Name = "ahead"
	add("converted", "ahead", k.convert(t, push(t, k, ahead), "ahead"), states(ahead))

	for _, p := range pods {
		k.apply(t, *p)
	}
	for family, p := range pods {
		k.awaitRunning(t, *p)
		for dir, files := range want[family] {
			k.wantFiles(t, p.Metadata.Name, "main", dir, files)
		}
	}
}

// testShared mounts one model in several containers of a pod, in one of them a directory of it, and in
// another pod. A subPath that is not a directory is reported.
func testShared(t *testing.T, k *kubelet) {
	b := converttest.ModelPackTarGzip(converttest.Files(weights(5, 1<<20+3)))
	b.Name = "shared"
	ref := push(t, k, b)
	part := func(name, subPath string) pod {
		p := k.pod(name, ref, "IfNotPresent")
		p.Spec.Containers[0].Mounts[0].SubPath = subPath
		return p
	}
	several := part("shared-several", "")
	for i, sub := range []string{"scripts", "tokenizer", "./scripts/", ""} {
		c := several.Spec.Containers[0]
		c.Name, c.Mounts = fmt.Sprint("part", i), []mount{{Volume: "model", Path: "/model", SubPath: sub}}
		several.Spec.Containers = append(several.Spec.Containers, c)
	}
	other, file, missing := part("shared-other", ""), part("shared-file", "config.json"), part("shared-missing", "nope")
	k.apply(t, several, other, file, missing)
	k.awaitRunning(t, several)
	k.awaitRunning(t, other)

	whole, below := states(b), map[string]map[string]node.FileState{"scripts": {}, "tokenizer": {}}
	for name, f := range whole {
		if d := path.Dir(name); d != "." {
			below[d][path.Base(name)] = f
		}
	}
	for container, files := range map[string]map[string]node.FileState{
		"main": whole, "part0": below["scripts"], "part1": below["tokenizer"], "part2": below["scripts"], "part3": whole,
	} {
		k.wantFiles(t, "shared-several", container, "/model", files)
	}
	k.wantFiles(t, "shared-other", "main", "/model", whole)
	if out, err := k.cri.Exec(k.container(t, "shared-other", "main"), "/bin/busybox", "sh", "-c", "echo x > /model/README.md"); err == nil || !strings.Contains(err.Error(), "ead-only") {
		t.Errorf("write to a volume: got %q, %v, want: read-only file system", out, err)
	}

	// The runtime mounts directories only.
	// https://github.com/kubernetes/enhancements/tree/master/keps/sig-node/4639-oci-volume-source#non-goals
	wantMessage(t, k.awaitWaiting(t, "shared-file", "CreateContainerError"), `image subpath "config.json"`, documented(t, "only directory subpath is supported"))
	wantMessage(t, k.awaitWaiting(t, "shared-missing", "CreateContainerError"), `image subpath "nope"`, documented(t, "no such file or directory"))
}

// testPolicies starts pods while their registry is stopped.
func testPolicies(t *testing.T, k *kubelet) {
	r := node.StartRegistry(t, t.TempDir())
	b := converttest.ModelPackRaw(converttest.Files(weights(6, 1<<20)))
	r.Push(t, "models/policies", "1", artifact(b))
	address := node.FreeAddress(t)
	server := serveAt(t, address, r.Wire)
	k.node.Upstream(t, stoppedHost, address)
	const ref = stoppedHost + "/models/policies:1"

	k.run(t, k.pod("policy-first", ref, "Always"))
	k.wantFiles(t, "policy-first", "main", "/model", states(b))
	r.Wire.Reset()
	k.run(t, k.pod("policy-again", ref, "Always"))
	for _, request := range r.Wire.Requests() {
		if request.Blob() != "" && request.Method == http.MethodGet {
			t.Errorf("a model that is there is fetched again: %s", request.Path)
		}
	}
	server.Close()

	always := k.pod("policy-always", ref, "Always")
	k.apply(t, always)
	k.run(t, k.pod("policy-if-not-present", ref, "IfNotPresent"))
	k.run(t, k.pod("policy-never", ref, "Never"))
	for _, name := range []string{"policy-if-not-present", "policy-never"} {
		k.wantFiles(t, name, "main", "/model", states(b))
	}
	k.apply(t, k.pod("policy-never-absent", stoppedHost+"/models/other:1", "Never"))
	wantMessage(t, k.awaitWaiting(t, "policy-never-absent", "ErrImageNeverPull"), stoppedHost+"/models/other:1", documented(t, "is not present with pull policy of Never"))
	wantMessage(t, k.awaitWaiting(t, "policy-always", "ErrImagePull", "ImagePullBackOff"), ref+": ", "connection refused")

	// The kubelet tries again, and the pod starts.
	server = serveAt(t, address, r.Wire)
	defer server.Close()
	k.awaitRunning(t, always)
}

// serveAt serves HTTP at an address.
func serveAt(t *testing.T, address string, h http.Handler) *httptest.Server {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(h)
	server.Listener.Close()
	server.Listener = l
	server.Start()
	return server
}

// testReadAhead starts a pod whose label says that its model, which is complete and not in the page cache, is read
// ahead: the first two windows of 16 MiB, when it has read a page of them. The kernel may take pages back meanwhile.
func testReadAhead(t *testing.T, k *kubelet) {
	const window = 16 << 20
	b := converttest.ModelPackRaw(converttest.Files(weights(7, 4*window)))
	b.Name = "ahead-of"
	ref := push(t, k, b)
	k.run(t, k.pod("ahead-first", ref, "IfNotPresent"))
	f, err := os.Open(k.object(b, "model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	p := k.pod("ahead-labelled", ref, "IfNotPresent")
	p.Metadata.Labels = map[string]string{"ballast.dev/read-ahead": "on"}
	k.run(t, p)
	c := k.container(t, p.Metadata.Name, "main")
	eventually(t, "a model that is read ahead", func() error {
		_, rerr := k.cri.Exec(c, "/bin/busybox", "dd", "if=/model/model.gguf", "of=/dev/null", "bs=4096", "count=1")
		size, err := node.Cached(f)
		if err = errors.Join(rerr, err); err != nil || size < window {
			return fmt.Errorf("%v: %d bytes are in the page cache", err, size)
		}
		return nil
	})
}

// Command demo shows what ballast does: it sets up a registry, the daemon and containerd in a
// temporary directory, pulls an Ollama and a ModelPack model by their names, and looks at
// the files from inside a container. With -dev it leaves all that running until Ctrl-C and
// prints the environment to use it.
//
// It needs root, and what `make build tools` makes; `make demo` and `make dev` see to that.
package main

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
)

func main() {
	dev := flag.Bool("dev", false, "leave the environment running until Ctrl-C")
	size := flag.Int("size", 256, "size of the weights in MiB")
	flag.Parse()
	if *dev {
		// Not in namespaces of its own: other shells are to see the mounts.
		os.Exit(node.Run(func(t node.TB) { runDev(t, *size<<20) }))
	}
	os.Exit(node.Main(func() int {
		return node.Run(func(t node.TB) { runDemo(t, *size<<20) })
	}))
}

// The references of the models.
const (
	ollamaRef = "registry.ollama.ai/library/demo:latest"
	ocirepo   = "models/demo"
)

// setUp starts everything and pushes the models, which have the same weights.
func setUp(t node.TB, size int) (n *node.Node, models map[string]*converttest.Built) {
	n = node.StartNode(t, node.Options{Config: node.AllowLoopback})
	front := node.StartOllama(t, n.Registry)
	n.Upstream(t, "registry.ollama.ai", front.Host)
	weights := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(weights)
	files := converttest.Files(weights)
	ollama, modelPack := converttest.Ollama(files, converttest.OllamaConfigNew), converttest.ModelPackRaw(files)
	n.Registry.Push(t, "library/demo", "latest", artifact(ollama))
	n.Registry.Push(t, ocirepo, "1", artifact(modelPack))
	n.Registry.Push(t, "busybox", "1", node.Busybox(t))
	return n, map[string]*converttest.Built{ollamaRef: ollama, n.Registry.Ref(ocirepo, "1"): modelPack}
}

func artifact(b *converttest.Built) node.Artifact {
	return node.Artifact{Manifest: b.Manifest, MediaType: b.MediaType, Blobs: b.Blobs}
}

func title(format string, args ...any) { fmt.Printf("\n== "+format+"\n", args...) }

// show prints a command and what it says, and ends the program if it fails.
func show(t node.TB, r node.Result, command string, args ...any) {
	fmt.Printf("\n$ "+command+"\n", args...)
	fmt.Println(strings.TrimSpace(r.Stdout))
	if r.Err != nil {
		t.Fatalf("%s\n%v", strings.TrimSpace(r.Stderr), r.Err)
	}
}

func runDemo(t node.TB, size int) {
	title("A registry, ballastd and containerd start")
	n, models := setUp(t, size)
	refs := slices.Sorted(maps.Keys(models))
	fmt.Printf("The registry has two models with the same %d MiB of weights, one made by Ollama, one a ModelPack:\n", size>>20)
	for _, ref := range refs {
		fmt.Println("  " + ref)
	}

	for _, ref := range refs {
		title("%s becomes files", ref)
		start := time.Now()
		r := n.Pull("ballast", ref)
		r.Stdout = fmt.Sprintf("done in %.1f s", time.Since(start).Seconds())
		show(t, r, "ctr images pull --snapshotter ballast %s", ref)
		script := `cd / && $B find . \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./run -o -path ./.bin \) -prune -o -type f -exec $B sh -c 'for f; do echo "$($B stat -c "%A %10s" $f) $($B sha256sum $f)"; done' sh {} + | $B sort -k 4`
		show(t, n.RunIn("ballast", ref, script), "ctr run --snapshotter ballast %s: find, stat, sha256sum", ref)
		compare(t, n, ref, models[ref])
	}

	title("The disk has the weights once")
	show(t, n.Ballast("ls"), "ballast ls")
	show(t, n.Ballast("df"), "ballast df")
	title("All is stopped and removed again")
}

// compare checks what a container sees against the source.
func compare(t node.TB, n *node.Node, ref string, b *converttest.Built) {
	got, err := n.List("ballast", ref, "/")
	if err != nil {
		t.Fatalf("%v", err)
	}
	for path, f := range b.Files {
		want := node.FileState{Mode: fmt.Sprintf("%o", f.Mode), Size: int64(len(f.Data)), SHA256: digest.FromBytes(f.Data).Encoded()}
		if got[path] != want {
			t.Fatalf("%s: got %+v, want %+v", path, got[path], want)
		}
	}
	if len(got) != len(b.Files) {
		t.Fatalf("%d files, want %d", len(got), len(b.Files))
	}
	fmt.Printf("All %d files are those of the source: contents, sizes and modes.\n", len(got))
}

func runDev(t node.TB, size int) {
	n, models := setUp(t, size)
	for _, e := range n.Env() {
		k, v, _ := strings.Cut(e, "=")
		fmt.Printf("export %s=%q\n", k, v)
	}
	fmt.Printf("export HOSTS_DIR=%q\n\n", n.HostsDir())
	for ref := range models {
		fmt.Printf("ctr images pull --snapshotter ballast --hosts-dir $HOSTS_DIR %s\n", ref)
	}
	fmt.Printf("\nLogs and files are in %s. Ctrl-C removes everything.\n", n.Dir)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	<-signals
}

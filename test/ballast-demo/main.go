// Command ballast-demo demonstrates ballast: it starts a registry, the daemon and containerd in a temporary
// directory, pulls an Ollama and a ModelPack model by their names, and compares the files in a container.
// Then it pulls a carton from a web server, an Ollama model with a layer for each tensor, and a model that is read before it
// is complete. With -dev everything keeps running until Ctrl-C, and the environment is printed.
//
// It needs root. `make demo` and `make dev` run it with what `make build tools` built. That of a release runs the
// ballast and ballastd beside it, and the containerd, ctr and runc of the machine, which it otherwise leaves alone.
//
// In its containers it runs itself, because a model has no programs: "ballast-demo check SUMS" compares files as
// "sha256sum -c" does, "ballast-demo cat FILE" prints one, and "ballast-demo end FILE" the sha256 of its end.
package main

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

func main() {
	dev := flag.Bool("dev", false, "leave the environment running until Ctrl-C")
	size := flag.Int("size", 256, "size of the weights in `MiB`, at least 4")
	flag.Parse()
	switch {
	case flag.NArg() == 2 && inside[flag.Arg(0)] != nil:
		if err := inside[flag.Arg(0)](os.Stdout, "/", flag.Arg(1)); err != nil {
			fmt.Fprintln(os.Stderr, "ballast-demo:", err)
			os.Exit(1)
		}
	case flag.NArg() > 0 || *size < 4:
		flag.Usage()
		os.Exit(2)
	case *dev:
		// without namespaces, so that other shells see the mounts
		os.Exit(node.Run(func(t node.TB) { runDev(t, *size<<20) }))
	default:
		if os.Getpid() == 1 && node.Outermost() { // in a container
			if err := leaveRoot("/sys/fs/cgroup"); err != nil {
				fmt.Fprintln(os.Stderr, "ballast-demo:", err)
				os.Exit(1)
			}
		}
		os.Exit(node.Main(func() int {
			return node.Run(func(t node.TB) { runDemo(t, *size<<20) })
		}))
	}
}

// The references of the models.
const (
	ollamaRef = "registry.ollama.ai/library/demo:latest"
	ocirepo   = "models/demo"
)

// setUp starts everything and pushes the models, which have the same weights.
func setUp(t node.TB, size int) (n *node.Node, key tableKey, models map[string]*converttest.Built) {
	carton := converttest.GoodCarton(random(2, 8<<20))
	web := serveCarton(t, carton)
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	registry := node.StartRegistry(t, filepath.Join(dir, "registry"))
	key = newTableKey(t, dir)
	n = node.StartNode(t, node.Options{Registry: registry, Config: node.AllowLoopback + cartonConfig(web) + key.config(registry.Host)})
	front := node.StartOllama(t, n.Registry)
	n.Upstream(t, "registry.ollama.ai", front.Host)
	n.Upstream(t, cartonHost, web)
	files := converttest.Files(weights(size))
	ollama, modelPack := converttest.Ollama(files, converttest.OllamaConfigNew), converttest.ModelPackRaw(files)
	n.Registry.Push(t, "library/demo", "latest", artifact(ollama))
	n.Registry.Push(t, "library/tensors", "latest", artifact(tensorModel().Built))
	n.Registry.Push(t, ocirepo, "1", artifact(modelPack))
	n.Registry.Push(t, earlyRepo, "1", artifact(earlyModel(size)))
	return n, key, map[string]*converttest.Built{ollamaRef: ollama, n.Registry.Ref(ocirepo, "1"): modelPack}
}

// weights returns a GGUF file of about size bytes: the header of a llama, and tensors of random numbers.
func weights(size int) []byte {
	const tensor = 4 << 20 // bytes
	f := converttest.SmallGGUF()
	f.Keys = slices.DeleteFunc(f.Keys, func(k converttest.GGUFKey) bool {
		return k.Name == "general.name" || k.Name == "general.file_type" || k.Name == "llama.block_count"
	})
	f.Keys = append(f.Keys, converttest.GGUFKey{Name: "general.name", Value: "Demo"},
		converttest.GGUFKey{Name: "general.file_type", Value: uint32(1)}, converttest.GGUFKey{Name: "llama.block_count", Value: uint32(size / tensor)})
	f.Tensors = nil
	p := random(1, size/tensor*tensor)
	for i := range size / tensor {
		f.Tensors = append(f.Tensors, converttest.GGUFTensor{
			Name: fmt.Sprintf("blk.%d.ffn_up.weight", i), Shape: []uint64{2048, tensor / 2048 / 2}, Type: 1, Data: p[i*tensor:][:tensor],
		})
	}
	return converttest.GGUF(f)
}

// random returns bytes that are the same each time.
func random(seed byte, size int) []byte {
	p := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(p)
	return p
}

func artifact(b *converttest.Built) node.Artifact {
	return node.Artifact{Manifest: b.Manifest, MediaType: b.MediaType, Blobs: b.Blobs}
}

func title(format string, args ...any) { fmt.Printf("\n== "+format+"\n", args...) }

// show prints the output of a command, and ends the program if the command failed.
func show(t node.TB, r node.Result) {
	fmt.Println(strings.TrimSpace(r.Stdout))
	if r.Err != nil {
		t.Fatalf("%s\n%v", strings.TrimSpace(r.Stderr), r.Err)
	}
}

// prompt prints a command line that can be copied into a shell of `make dev`.
func prompt(argv ...string) {
	for i, a := range argv {
		argv[i] = quote(a)
	}
	fmt.Printf("\n$ %s\n", strings.Join(argv, " "))
}

// quote quotes s for a shell.
func quote(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+:,./@%") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// ctr prints a command line of ctr and runs it.
func ctr(n *node.Node, args ...string) node.Result {
	prompt(append([]string{"ctr"}, args...)...)
	return n.Ctr(args...)
}

// program is where a container has this program.
const program = "/.bin/ballast-demo"

// run prints and runs a command of this program in a container that has a model as its file system.
func run(n *node.Node, ref, name string, flags []string, args ...string) node.Result {
	self, err := os.Executable()
	if err != nil {
		return node.Result{Err: err}
	}
	argv := append([]string{"run", "--rm", "--snapshotter", "ballast", "--mount", "type=bind,src=" + self + ",dst=" + program + ",options=rbind:ro"}, flags...)
	return ctr(n, append(append(argv, ref, name, program), args...)...)
}

// check compares the files of a model in a container with those of its source.
func check(t node.TB, n *node.Node, ref, name string, want map[string]converttest.File) {
	dir := filepath.Join(n.Dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatalf("%v", err)
	}
	var text strings.Builder
	for _, path := range slices.Sorted(maps.Keys(want)) {
		fmt.Fprintf(&text, "%s  %s\n", digest.FromBytes(want[path].Data).Encoded(), path)
	}
	if err := os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(text.String()), 0o644); err != nil {
		t.Fatalf("%v", err)
	}
	fmt.Printf("\nA container with the model as its file system compares the files with those of the source:\n")
	show(t, run(n, ref, name, []string{"--mount", "type=bind,src=" + dir + ",dst=/.sums,options=rbind:ro"}, "check", "/.sums/SHA256SUMS"))
}

// exports prints the environment in which ctr and ballast use the node.
func exports(n *node.Node) {
	for _, e := range n.Env() {
		k, v, _ := strings.Cut(e, "=")
		fmt.Printf("export %s=%s\n", k, quote(v))
	}
	fmt.Printf("export HOSTS_DIR=%s\n", quote(n.HostsDir()))
}

func runDemo(t node.TB, size int) {
	title("A registry, ballastd and containerd start")
	n, key, models := setUp(t, size)
	refs := slices.Sorted(maps.Keys(models))
	fmt.Printf("The registry has two models with the same %d MiB of weights, one made by Ollama, one a ModelPack:\n", size>>20)
	for _, ref := range refs {
		fmt.Println("  " + ref)
	}

	fmt.Println("\nctr and ballast find all this by variables of the environment; with -dev it stays, and they are printed.\nOn a node that `ballast setup` has set up, they need none.")

	for i, ref := range refs {
		title("%s becomes files", ref)
		pull(t, n, ref)
		if i == 0 {
			prompt("ballast", "inspect", ref)
			show(t, n.Ballast("inspect", ref))
		}
		check(t, n, ref, fmt.Sprintf("check%d", i), models[ref].Files)
	}

	showCarton(t, n)
	showTensors(t, n)
	showEarly(t, n, key, size)

	title("The disk has the weights once")
	for _, command := range []string{"ls", "df"} {
		prompt("ballast", command)
		show(t, n.Ballast(command))
	}
	title("All is stopped and removed again")
}

// pull pulls a model and prints how long it took.
func pull(t node.TB, n *node.Node, ref string) {
	start := time.Now()
	r := ctr(n, "images", "pull", "--snapshotter", "ballast", "--hosts-dir", n.HostsDir(), ref)
	r.Stdout = fmt.Sprintf("done in %.1f s", time.Since(start).Seconds())
	show(t, r)
}

func runDev(t node.TB, size int) {
	n, _, models := setUp(t, size)
	if _, err := os.Stat(node.BusyboxPath); err == nil {
		n.Registry.Push(t, "busybox", "1", node.Busybox(t)) // the sandbox image of pods
	}
	t.Cleanup(func() { unmountLeft(t, n) }) // before the daemons stop
	mnt := filepath.Join(n.Dir, "mnt")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatalf("%v", err)
	}
	fmt.Println("# Copy this into another shell:")
	exports(n)
	fmt.Println("\n# Is all set up?")
	fmt.Printf("ballast doctor --containerd-config %s --hosts-dir $HOSTS_DIR\n", quote(n.ContainerdConfigFile()))
	fmt.Println("\n# Pull:")
	refs := append(slices.Sorted(maps.Keys(models)), cartonRef, tensorsRef)
	for _, ref := range refs {
		fmt.Printf("ctr images pull --snapshotter ballast --hosts-dir $HOSTS_DIR %s\n", ref)
	}
	fmt.Println("\n# Look at the files, and be done:")
	// A new directory each time, because containerd remembers a directory that ctr has used.
	fmt.Printf("M=$(mktemp -d -p %s)\nctr images mount --snapshotter ballast %s $M\nls -l $M\nctr images unmount --rm --snapshotter ballast $M\n", quote(mnt), refs[0])
	fmt.Printf("\n# Models of your own can be pushed to the registry at %s (plain HTTP, no credentials):\n", n.Registry.Host)
	fmt.Printf("oras push --plain-http %s/team/model:v1 ...\n", n.Registry.Host)
	fmt.Printf("\n# Logs and files are in %s. Ctrl-C here removes everything.\n", n.Dir)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	<-signals
}

// unmountLeft unmounts what was mounted manually: models, anywhere, and everything below the node's
// directory, except mounts of running containers.
func unmountLeft(t node.TB, n *node.Node) {
	p, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Errorf("%v", err)
		return
	}
	for _, dir := range slices.Backward(leftMounts(string(p), n.Dir)) {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
			continue
		}
		fmt.Printf("unmounted %s\n", dir)
	}
}

// leftMounts returns the mount points of mountinfo that are below dir or show something below it, in
// the order of mounting, without those of running containers.
// https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html
func leftMounts(mountinfo, dir string) []string {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var found []string
	for line := range strings.Lines(mountinfo) {
		f := strings.Fields(line)
		if len(f) < 6 {
			continue
		}
		point := unescape.Replace(f[4])
		shows := unescape.Replace(f[3]) + " " + f[len(f)-1] // a bind mount, or the layers of an overlay
		ours := strings.HasPrefix(point, dir+"/") || strings.Contains(shows, filepath.Base(dir)+"/")
		if ours && !strings.HasPrefix(point, filepath.Join(dir, "state", "io.containerd.runtime.v2.task")+"/") {
			found = append(found, point)
		}
	}
	return found
}

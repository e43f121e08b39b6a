package cluster

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/agent"
	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
	"github.com/ballast-dev/ballast/test/cluster/plane"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

var agents = flag.Int("agents", 1000, "agents of TestManyAgents")

// download is how long the simulated daemons download a model.
const download = 90 * time.Second

// TestManyAgents measures what many agents are for an API server. All is real but the daemons: one process cannot
// have so many, and what an agent sends depends on the answers of its daemon only.
func TestManyAgents(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	c := startCluster(t, plane.Options{Grace: time.Hour}) // there are no kubelets
	c.addNodes(t, *agents)
	c.startAgents(t, *agents, simulatedDaemon(t))
	m := &meter{c: c, writes: map[string]int{}, versions: map[string]string{}}
	m.watch(t)
	eventually(t, "the states of all nodes", func() error {
		return m.nodes(t, func(s v1alpha1.ModelNodeStatus) bool { return s.Disk != nil }) // the last that is written without a set
	})

	t.Logf("%d agents", *agents)
	quiet := m.measure(t, "one minute without a change", func() { time.Sleep(time.Minute) })
	if quiet.writes > 0 {
		t.Errorf("%d writes without a change", quiet.writes)
	}
	eventually(t, "two watches for each agent, and some of the control plane", func() error {
		n := m.sum(t, "apiserver_longrunning_requests", `verb="WATCH"`, `resource="(modelplans|nodes)"`)
		if n < 2**agents || n > 2**agents+40 {
			return fmt.Errorf("%d watches of plans and nodes", n)
		}
		return nil
	})

	ref := "registry.example/team/model:v1"
	begin := time.Now()
	all := m.measure(t, "a set, from its creation until all nodes have it", func() {
		c.set(t, "chat", v1alpha1.ModelSetSpec{Models: []string{ref}})
		eventually(t, "all nodes to know the set", func() error {
			return m.nodes(t, func(s v1alpha1.ModelNodeStatus) bool { return len(s.List) == 1 })
		})
		t.Logf("all nodes knew the set after %v", time.Since(begin).Round(100*time.Millisecond))
		c.awaitSet(t, "chat", fmt.Sprintf("%d/%[1]d True", *agents))
	})
	// For each node: three phases, the disk, and progress.
	if most := *agents * (4 + int(all.took/(30*time.Second))); all.writes > most {
		t.Errorf("%d writes of states, want at most %d", all.writes, most)
	}

	c.controller.Kill()
	c.set(t, "later", v1alpha1.ModelSetSpec{Models: []string{ref}})
	m.measure(t, "a restart of the controller, until it has counted all sets", func() {
		c.startController(t)
		c.awaitSet(t, "later", fmt.Sprintf("%d/%[1]d True", *agents))
	})
}

// addNodes adds nodes as kubelets would.
func (c *cluster) addNodes(t *testing.T, n int) {
	t.Helper()
	g, ctx := errgroup.WithContext(t.Context())
	g.SetLimit(8)
	for i := range n {
		g.Go(func() error {
			return c.addNode(ctx, i)
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// startAgents runs agents in this process, each with the rights of a pod on its node. One that ends is started again,
// as the DaemonSet does: watches may begin too late on a busy machine.
func (c *cluster) startAgents(t *testing.T, n int, socket string) {
	t.Helper()
	s := scheme(t)
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	t.Cleanup(func() { stop(); all.Wait() })
	for i := range n {
		config := c.config(t, c.token(t, "ballast", nodeName(i)))
		all.Go(func() {
			for ctx.Err() == nil {
				a := &agent.Agent{
					Node: nodeName(i), Marks: agent.Marks{Label: label, Taint: taint}, Models: true, Refresh: 10 * time.Minute, Socket: socket, Log: slog.New(slog.DiscardHandler),
				}
				err := a.Run(ctx, func(o manager.Options) (manager.Manager, error) {
					o.Scheme, o.Metrics, o.Controller.SkipNameValidation = s, server.Options{BindAddress: "0"}, new(true)
					return manager.New(config, o)
				})
				if ctx.Err() == nil {
					t.Logf("agent of %s: %v", a.Node, err)
				}
			}
		})
	}
}

// simulatedDaemon answers agents as a daemon does whose downloads take 90 seconds, with a line each second.
func simulatedDaemon(t *testing.T) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	answer := func(pattern, body string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, body)
		})
	}
	info, _ := debug.ReadBuildInfo() // agents want a daemon of their version
	answer("GET /v1/health", fmt.Sprintf(`{"version": {"version": %q}, "containerdLoaded": true}`, info.Main.Version))
	answer("GET /v1/fleet/pulls", "[]")
	answer("GET /v1/fleet/node", `{"usage": {"unique": 100000000000, "free": 400000000000}, "direct": 100000000000}`)
	answer("POST /v1/fleet/version", fmt.Sprintf(`{"digest": "sha256:%064d"}`, 3))
	mux.HandleFunc("PUT /v1/fleet/pins", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.Copy(w, r.Body)
	})
	mux.HandleFunc("POST /v1/fleet/pull", func(w http.ResponseWriter, r *http.Request) {
		const total = int64(100e9)
		line := func(format string, args ...any) {
			_, _ = fmt.Fprintf(w, format+"\n", args...)
			w.(http.Flusher).Flush()
		}
		began, takes := time.Now(), time.Duration(float64(download)*(0.9+0.2*rand.Float64()))
		for done := time.Duration(0); done < takes; done = time.Since(began) {
			line(`{"status": "downloading", "digest": "sha256:%064d", "total": %d, "completed": %d, "rate": %d}`, 1, total, int64(float64(total)*done.Seconds()/takes.Seconds()), int64(float64(total)/takes.Seconds()))
			select {
			case <-time.After(time.Second):
			case <-r.Context().Done():
				return
			}
		}
		line(`{"status": "complete", "digest": "sha256:%064d", "total": %d, "completed": %[2]d}`, 1, total)
		line(`{"status": "success", "image": {"manifest": "sha256:%064d"}}`, 2)
	})
	s := &http.Server{Handler: mux}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return socket
}

// A meter measures the API server.
type meter struct {
	c *cluster

	mu     sync.Mutex // guards what follows
	writes map[string]int
	states map[string]v1alpha1.ModelNodeStatus

	versions map[string]string // of the objects
}

// A reading is what happened during a time.
type reading struct {
	took   time.Duration
	writes int // of states of nodes
}

// watch follows the states of all nodes, until the end of the test.
func (m *meter) watch(t *testing.T) {
	t.Helper()
	m.states = map[string]v1alpha1.ModelNodeStatus{}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	t.Cleanup(func() { stop(); <-ended })
	go func() {
		defer close(ended)
		for ctx.Err() == nil { // the API server ends watches of clients that are slow
			if err := m.follow(ctx); err != nil && ctx.Err() == nil {
				t.Logf("watch of the states: %v", err)
			}
		}
	}()
}

// follow follows the states until the API server ends the watch. A state that changes more than once meanwhile counts
// once.
func (m *meter) follow(ctx context.Context) error {
	var all v1alpha1.ModelNodeList
	if err := m.c.admin.List(ctx, &all); err != nil {
		return err
	}
	for i := range all.Items {
		m.saw(&all.Items[i])
	}
	w, err := m.c.admin.Watch(ctx, &v1alpha1.ModelNodeList{}, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: all.ResourceVersion}})
	if err != nil {
		return err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		is, ok := e.Object.(*v1alpha1.ModelNode)
		if !ok {
			return fmt.Errorf("%s: %v", e.Type, e.Object)
		}
		m.saw(is)
	}
	return nil
}

func (m *meter) saw(is *v1alpha1.ModelNode) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v := m.versions[is.Name]; v != "" && v != is.ResourceVersion {
		m.writes[is.Name]++
	}
	m.versions[is.Name], m.states[is.Name] = is.ResourceVersion, is.Status
}

// nodes returns an error unless all nodes have a state, which ok accepts.
func (m *meter) nodes(t *testing.T, ok func(v1alpha1.ModelNodeStatus) bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, s := range m.states {
		if ok(s) {
			n++
		}
	}
	if n < *agents {
		return fmt.Errorf("%d of %d nodes", n, *agents)
	}
	return nil
}

// measure logs what do costs.
func (m *meter) measure(t *testing.T, what string, do func()) reading {
	t.Helper()
	read := func() (cpu time.Duration, in, out int64, writes, most int) {
		cpu, in, out = usage(t, m.c.APIPid())
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, n := range m.writes {
			writes, most = writes+n, max(most, n)
		}
		return cpu, in, out, writes, most
	}
	cpu, in, out, writes, _ := read()
	begin := time.Now()
	do()
	took := time.Since(begin)
	cpu2, in2, out2, writes2, most := read()
	t.Logf("%s: %v, %d writes of states (%d in all for the node with the most); API server: %v of processor time, %.1f MB read, %.1f MB written",
		what, took.Round(100*time.Millisecond), writes2-writes, most, (cpu2 - cpu).Round(10*time.Millisecond), float64(in2-in)/1e6, float64(out2-out)/1e6)
	return reading{took, writes2 - writes}
}

// usage returns the processor time of a process, and the bytes that it has read and written, also at its sockets.
func usage(t *testing.T, pid int) (cpu time.Duration, in, out int64) {
	t.Helper()
	cpu, err := node.CPU(pid, false)
	if err != nil {
		t.Fatal(err)
	}
	p, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(p), "rchar: %d\nwchar: %d", &in, &out); err != nil {
		t.Fatal(err)
	}
	return cpu, in, out
}

// sum returns the sum of a metric of the API server over the lines that have all patterns.
func (m *meter) sum(t *testing.T, metric string, patterns ...string) (sum int) {
	t.Helper()
	config := m.c.config(t, "admin")
	config.GroupVersion, config.NegotiatedSerializer = &core.SchemeGroupVersion, clientgoscheme.Codecs
	k, err := restClient(config)
	if err != nil {
		t.Fatal(err)
	}
	text, err := k.Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
lines:
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, metric+"{") {
			continue
		}
		for _, p := range patterns {
			if !regexp.MustCompile(p).MatchString(line) {
				continue lines
			}
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += int(v)
	}
	return sum
}

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// The clusters of the tests have manySets sets of all nodes.
const manyNodes, manySets, setModels = 5000, 10, 5

func modelRef(set, i int) string { return fmt.Sprintf("ghcr.io/team/model-%02d-%02d:v1", set, i) }

func nodeMeta(i int) metav1.ObjectMeta {
	name := fmt.Sprintf("node-%04d", i)
	m := metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: "1", Labels: map[string]string{"kubernetes.io/hostname": name}}
	for k := range 20 {
		m.Labels[fmt.Sprintf("example.com/label-%d", k)] = fmt.Sprint(k * i % 7)
	}
	return m
}

// modelNode returns the state of a node that has all models but for the first of some sets, as the API server sends it:
// half of it are managed fields.
func modelNode(i int, lacking ...int) *v1alpha1.ModelNode {
	n := &v1alpha1.ModelNode{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ModelNode"}, ObjectMeta: nodeMeta(i)}
	n.Labels = nil
	var fields strings.Builder
	for s := range manySets {
		for k := range setModels {
			m := v1alpha1.ModelState{
				Ref: modelRef(s, k), Phase: v1alpha1.PhaseReady, Total: 8e9, Completed: 8e9, Registries: 1e9, Mirrors: 7e9, Since: metav1.Now(),
				Pinned: []string{fmt.Sprintf("sha256:%064d", s*setModels+k)}, Origin: fmt.Sprintf("sha256:%064d", 1000+s*setModels+k),
			}
			for _, l := range lacking {
				if l == s && k == 0 {
					m.Phase, m.Completed, m.Rate, m.Pinned, m.Origin = v1alpha1.PhaseDownloading, 1e9, 1e8, nil, ""
				}
			}
			n.Status.List = append(n.Status.List, m)
			fmt.Fprintf(&fields, `"k:{\"ref\":\"%s\"}":{".":{},"f:completed":{},"f:mirrors":{},"f:origin":{},"f:phase":{},"f:pinned":{},"f:ref":{},"f:registries":{},"f:since":{},"f:total":{}},`, m.Ref)
		}
	}
	now := metav1.Now()
	n.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: "ballast-fleet", Operation: "Update", APIVersion: n.APIVersion, Time: &now, FieldsType: "FieldsV1", Subresource: "status",
		FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:list":{` + strings.TrimSuffix(fields.String(), ",") + `}}}`),
	}}
	return n
}

// An api answers as an API server: watches of generated objects, and writes of statuses.
type api struct {
	nodes int

	mu      sync.Mutex // guards what follows
	version int
	sets    map[string]*v1alpha1.ModelSet
	plans   map[string]*v1alpha1.ModelPlan
	watches map[string]chan any // events, by resource
	writes  int                 // of sets
	planned int                 // writes of plans, each of which all agents get
}

func newAPI(nodes int) *api {
	a := &api{nodes: nodes, version: 2, sets: map[string]*v1alpha1.ModelSet{}, plans: map[string]*v1alpha1.ModelPlan{}, watches: map[string]chan any{}}
	for s := range manySets {
		set := &v1alpha1.ModelSet{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ModelSet"},
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("set-%d", s), UID: types.UID(fmt.Sprint(s)), Generation: 1, ResourceVersion: "1", CreationTimestamp: metav1.Now()},
		}
		for k := range setModels {
			set.Spec.Models = append(set.Spec.Models, modelRef(s, k))
		}
		a.sets[set.Name] = set
	}
	for resource := range kinds {
		a.watches[resource] = make(chan any, 100)
	}
	return a
}

// kinds are the version and kind of each resource that is watched.
var kinds = map[string][2]string{
	"modelsets": {"ballast.dev/v1alpha1", "ModelSet"}, "modelplans": {"ballast.dev/v1alpha1", "ModelPlan"}, "modelnodes": {"ballast.dev/v1alpha1", "ModelNode"},
	"nodes": {"meta.k8s.io/v1", "PartialObjectMetadata"}, "pods": {"v1", "Pod"},
}

// objects calls emit with the objects of a resource.
func (a *api) objects(resource string, emit func(any)) {
	for i := range a.nodes {
		switch resource {
		case "modelnodes":
			emit(modelNode(i))
		case "nodes":
			emit(&metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}, ObjectMeta: nodeMeta(i)})
		case "pods":
			emit(&core.Pod{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, Spec: core.PodSpec{NodeName: nodeMeta(i).Name},
				ObjectMeta: metav1.ObjectMeta{Namespace: "ballast-system", Name: fmt.Sprintf("ballast-%d", i), ResourceVersion: "1"},
				Status:     core.PodStatus{Conditions: []core.PodCondition{{Type: core.PodReady, Status: core.ConditionTrue}}},
			})
		}
	}
	if resource == "modelsets" {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, s := range a.sets {
			emit(s)
		}
	}
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := path.Base(r.URL.Path)
	w.Header().Set("Content-Type", "application/json")
	switch {
	case strings.Contains(r.URL.Path, "/modelplans") && r.Method != http.MethodGet:
		a.plan(w, r)
	case r.Method == http.MethodPut:
		a.update(w, r)
	case r.Method == http.MethodPost: // an event
		w.WriteHeader(http.StatusCreated)
		_, _ = io.Copy(w, r.Body)
	case r.URL.Query().Get("watch") != "" && a.watches[resource] != nil:
		out := json.NewEncoder(w)
		send := func(kind string, o any) { _ = out.Encode(map[string]any{"type": kind, "object": o}) }
		if r.URL.Query().Get("sendInitialEvents") == "true" {
			a.objects(resource, func(o any) { send("ADDED", o) })
		}
		send("BOOKMARK", map[string]any{
			"apiVersion": kinds[resource][0], "kind": kinds[resource][1],
			"metadata": map[string]any{"resourceVersion": "1", "annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"}},
		})
		w.(http.Flusher).Flush()
		for {
			select {
			case <-r.Context().Done():
				return
			case o := <-a.watches[resource]:
				send("MODIFIED", o)
				w.(http.Flusher).Flush()
			}
		}
	case a.watches[resource] != nil: // without WatchList, all objects at once
		fmt.Fprintf(w, `{"apiVersion": %q, "kind": "%sList", "metadata": {"resourceVersion": "1"}, "items": [`, kinds[resource][0], kinds[resource][1])
		comma := ""
		a.objects(resource, func(o any) {
			p, _ := json.Marshal(o)
			fmt.Fprintf(w, "%s%s", comma, p)
			comma = ","
		})
		_, _ = io.WriteString(w, "]}")
	default:
		http.NotFound(w, r)
	}
}

var statusPath = regexp.MustCompile(`^/apis/ballast.dev/v1alpha1/modelsets/([^/]+)/status$`)

func (a *api) update(w http.ResponseWriter, r *http.Request) {
	var is v1alpha1.ModelSet
	m := statusPath.FindStringSubmatch(r.URL.Path)
	if err := json.NewDecoder(r.Body).Decode(&is); err != nil || m == nil {
		http.Error(w, fmt.Sprint(r.URL, err), http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version, a.writes = a.version+1, a.writes+1
	is.ResourceVersion = fmt.Sprint(a.version)
	a.sets[m[1]] = &is
	a.watches["modelsets"] <- &is
	_ = json.NewEncoder(w).Encode(&is)
}

// plan creates or updates a plan.
func (a *api) plan(w http.ResponseWriter, r *http.Request) {
	var is v1alpha1.ModelPlan
	if err := json.NewDecoder(r.Body).Decode(&is); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version, a.planned = a.version+1, a.planned+1
	is.ResourceVersion, is.Generation, is.UID = fmt.Sprint(a.version), int64(a.version), types.UID(is.Name)
	a.plans[is.Name] = &is
	a.watches["modelplans"] <- &is
	_ = json.NewEncoder(w).Encode(&is)
}

// startController starts a controller with a manager at an API server, until the end of the benchmark.
func startController(tb testing.TB, address string) *controller {
	tb.Helper()
	s, err := scheme()
	if err != nil {
		tb.Fatal(err)
	}
	ctrl.SetLogger(logr.Discard())
	mapper := meta.NewDefaultRESTMapper(nil)
	for kind, scope := range map[schema.GroupVersionKind]meta.RESTScope{
		v1alpha1.GroupVersion.WithKind("ModelSet"): meta.RESTScopeRoot, v1alpha1.GroupVersion.WithKind("ModelNode"): meta.RESTScopeRoot,
		v1alpha1.GroupVersion.WithKind("ModelPlan"): meta.RESTScopeRoot,
		core.SchemeGroupVersion.WithKind("Node"):    meta.RESTScopeRoot, core.SchemeGroupVersion.WithKind("Pod"): meta.RESTScopeNamespace,
	} {
		mapper.Add(kind, scope)
		mapper.Add(kind.GroupVersion().WithKind(kind.Kind+"List"), scope)
	}
	c := &controller{pods: labels.Everything()}
	mgr, err := ctrl.NewManager(&rest.Config{Host: address, QPS: -1}, manager.Options{
		Scheme: s, Logger: logr.Discard(), Metrics: server.Options{BindAddress: "0"}, Cache: c.cacheOptions("ballast-system"),
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper, nil },
	})
	if err != nil {
		tb.Fatal(err)
	}
	if err := c.setup(mgr); err != nil {
		tb.Fatal(err)
	}
	if err := (&narrator{}).setup(mgr); err != nil {
		tb.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(tb.Context()) }()
	tb.Cleanup(func() {
		if err := <-ended; err != nil {
			tb.Error(err)
		}
	})
	return c
}

// processor returns the processor time of this process.
func processor(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// await waits until n nodes of a set are ready.
func await(tb testing.TB, set string, n float64) {
	tb.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(setNodes.WithLabelValues(set, "ready"))
	for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		all, err := r.Gather()
		if err != nil {
			tb.Fatal(err)
		}
		if all[0].GetMetric()[0].GetGauge().GetValue() == n {
			return
		}
	}
	tb.Fatalf("%s: no %v ready nodes", set, n)
}

// TestController counts the nodes again when one changes, and writes a status at once, and then not again at once.
func TestController(t *testing.T) {
	a := newAPI(3)
	s := httptest.NewServer(a)
	t.Cleanup(s.Close)
	begin := time.Now()
	startController(t, s.URL)
	await(t, "set-0", 3)
	var first v1alpha1.ModelSetStatus
	for first.ObservedGeneration == 0 && time.Since(begin) < time.Minute { // the write follows the metric
		time.Sleep(10 * time.Millisecond)
		a.mu.Lock()
		first = a.sets["set-0"].Status
		a.mu.Unlock()
	}
	if ready := meta.FindStatusCondition(first.Conditions, v1alpha1.ReadyCondition); first.Ready != 3 || ready == nil || ready.Reason != "Complete" {
		t.Errorf("%+v", first)
	}
	for i, lacking := range []int{0, 1, 0} {
		is := modelNode(2, lacking)
		is.ResourceVersion = fmt.Sprint(100 + i)
		a.watches["modelnodes"] <- is
		await(t, "set-0", float64(2+lacking))
		await(t, "set-1", float64(3-lacking))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if most := manySets + 2*int(time.Since(begin)/(10*time.Second)); a.writes > most { // of the two that change
		t.Errorf("%d writes of statuses, want at most %d", a.writes, most)
	}
	if a.planned != manySets { // agents hear of no count
		t.Errorf("%d writes of %d plans", a.planned, manySets)
	}
	for _, p := range a.plans {
		if len(p.Spec.Versions) != setModels || p.Spec.Versions[0].Node == "" || p.Spec.Versions[0].Term != 1 {
			t.Errorf("%s: %+v", p.Name, p.Spec.Versions)
		}
	}
}

// BenchmarkController measures a controller with many nodes and models, all of which are ready: its memory, and its
// processor time at its start, in half a minute without a change, and for a change of one node. The API server is in
// the same process.
func BenchmarkController(b *testing.B) {
	a := newAPI(manyNodes)
	s := httptest.NewServer(a)
	b.Cleanup(s.Close)
	begin := processor(b)
	startController(b, s.URL)
	for i := range manySets {
		await(b, fmt.Sprintf("set-%d", i), manyNodes)
	}
	started := processor(b) - begin
	time.Sleep(2 * countEvery)
	begin = processor(b)
	time.Sleep(30 * time.Second)
	quiet := processor(b) - begin
	most, rss := memory(b, "VmHWM"), memory(b, "VmRSS")
	var mem runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&mem)
	begin = processor(b)
	n := 0
	for b.Loop() {
		lacking := []int{0}
		if n%2 == 1 {
			lacking = nil
		}
		is := modelNode(7, lacking...)
		is.ResourceVersion = fmt.Sprint(100 + n)
		a.watches["modelnodes"] <- is
		await(b, "set-0", float64(manyNodes-len(lacking)))
		n++
	}
	b.ReportMetric(float64((processor(b)-begin).Microseconds())/1e3/float64(n), "ms-cpu/change")
	b.ReportMetric(started.Seconds(), "s-cpu/start")
	b.ReportMetric(quiet.Seconds()/30*100, "%-cpu-quiet")
	b.ReportMetric(float64(mem.HeapAlloc)/1e6, "MB-live")
	b.ReportMetric(most, "MB-rss-most")
	b.ReportMetric(rss, "MB-rss-quiet")
	a.mu.Lock()
	defer a.mu.Unlock()
	b.ReportMetric(float64(a.writes), "writes")
}

// memory returns a value of this process in megabytes.
func memory(tb testing.TB, name string) (kilobytes float64) {
	tb.Helper()
	p, err := os.ReadFile("/proc/self/status")
	if err != nil {
		tb.Fatal(err)
	}
	_, value, _ := strings.Cut(string(p), name+":")
	if _, err := fmt.Sscan(value, &kilobytes); err != nil {
		tb.Fatal(err)
	}
	return kilobytes * 1024 / 1e6
}

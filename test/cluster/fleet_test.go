package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
	"github.com/ballast-dev/ballast/test/cluster/plane"
	"github.com/ballast-dev/ballast/test/e2e/node"
	authentication "k8s.io/api/authentication/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// patience is how long a test waits for a condition, even on a busy machine.
const patience = 10 * time.Minute

const (
	namespace = "ballast-system"
	taint     = "ballast.dev/not-ready"
	label     = "ballast.dev/node"
)

// A cluster is a control plane with the objects of the chart, its controller, and nodes.
type cluster struct {
	*plane.Plane
	whole      *testing.T // at whose end the programs end, which subtests start
	admin      client.WithWatch
	dir        string
	nodes      map[string]*clusterNode
	controller *node.Process
}

// A clusterNode is a node with its agent.
type clusterNode struct {
	*node.Node
	cri     *node.CRI
	name    string
	agent   *node.Process
	metrics string // address
}

func startCluster(t *testing.T, o plane.Options) *cluster {
	t.Helper()
	o.Tools = filepath.Dir(node.Kubernetes(t, "kubectl"))
	dir := t.TempDir()
	c := &cluster{whole: t, Plane: plane.Start(t, dir, o), dir: dir, nodes: map[string]*clusterNode{}}
	c.admin = c.client(t, "admin")
	c.install(t)
	c.startController(t)
	return c
}

// startController starts the controller.
func (c *cluster) startController(t *testing.T) {
	t.Helper()
	c.controller = c.start(t, "controller", "ballast-fleet", "", "controller", "--pods=app.kubernetes.io/name=ballast,app.kubernetes.io/component=node", "--pod-events")
}

// config returns the configuration of a client with a token.
func (c *cluster) config(t *testing.T, token string) *rest.Config {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(c.Kubeconfig(c.Address, token)))
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// scheme has the types of clients.
func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// client returns a client with a token.
func (c *cluster) client(t *testing.T, token string) client.WithWatch {
	t.Helper()
	config := c.config(t, token)
	config.QPS = -1
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return patient{next} })
	k, err := client.NewWithWatch(config, client.Options{Scheme: scheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// patient repeats requests that a busy API server does not serve.
type patient struct{ next http.RoundTripper }

func (p patient) RoundTrip(req *http.Request) (*http.Response, error) {
	for begin := time.Now(); ; time.Sleep(time.Second) {
		resp, err := p.next.RoundTrip(req)
		served := err == nil && resp.StatusCode < http.StatusInternalServerError && resp.StatusCode != http.StatusTooManyRequests
		if served || req.Context().Err() != nil || time.Since(begin) > patience || req.Body != nil && req.GetBody == nil {
			return resp, err
		}
		if err == nil {
			resp.Body.Close()
		}
		if req = req.Clone(req.Context()); req.Body != nil {
			if req.Body, err = req.GetBody(); err != nil {
				return nil, err
			}
		}
	}
}

// install creates what the chart renders, but for its pods.
func (c *cluster) install(t *testing.T) {
	t.Helper()
	c.create(t, &core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	program, err := filepath.Abs("../../bin/test/render")
	if err != nil {
		t.Fatal(err)
	}
	out := node.Command(t.Context(), nil, program, "../../contrib/helm/ballast", `{"fleet": {"enabled": true, "pullSecrets": ["models"]}}`)
	if out.Err != nil {
		t.Fatalf("render: %v\n%s", out.Err, out.Output())
	}
	docs := yaml.NewYAMLOrJSONDecoder(strings.NewReader(out.Stdout), 4096)
	var later []*unstructured.Unstructured
	for {
		o := &unstructured.Unstructured{}
		if err := docs.Decode(&o.Object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		switch kind := o.GetKind(); {
		case kind == "" /* comments only */, kind == "DaemonSet", kind == "Deployment", o.GetAnnotations()["helm.sh/hook"] != "":
		case kind == "CustomResourceDefinition":
			c.create(t, o)
		default:
			later = append(later, o)
		}
	}
	if len(later) < 10 {
		t.Fatalf("the chart renders %d objects\n%s", len(later), out.Stdout)
	}
	for _, o := range later {
		c.create(t, o)
	}
	eventually(t, "ModelSets", func() error { return c.admin.List(t.Context(), &v1alpha1.ModelSetList{}) })
}

func (c *cluster) create(t *testing.T, o client.Object) {
	t.Helper()
	if err := c.admin.Create(t.Context(), o); client.IgnoreAlreadyExists(err) != nil { // see patient
		t.Fatalf("create %s: %v", o.GetName(), err)
	}
}

// token returns a token of a service account, for a pod on a node if that is not empty.
func (c *cluster) token(t *testing.T, account, nodeName string) string {
	t.Helper()
	req := &authentication.TokenRequest{}
	if nodeName != "" {
		labels := map[string]string{"app.kubernetes.io/name": "ballast", "app.kubernetes.io/component": "node"} // of the pods of the DaemonSet
		pod := &core.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: account + "-", Labels: labels}, Spec: core.PodSpec{
			ServiceAccountName: account, NodeName: nodeName, Containers: []core.Container{{Name: "node", Image: "x"}},
			Tolerations: []core.Toleration{{Operator: core.TolerationOpExists}},
		}}
		c.create(t, pod)
		c.markPod(t, pod, core.ConditionTrue)
		req.Spec.BoundObjectRef = &authentication.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}
	}
	of := &core.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account}}
	if err := c.admin.SubResource("token").Create(t.Context(), of, req); err != nil {
		t.Fatalf("token of %s: %v", account, err)
	}
	return req.Status.Token
}

// markPod sets the condition Ready of a pod, as its kubelet would.
func (c *cluster) markPod(t *testing.T, pod *core.Pod, ready core.ConditionStatus) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"status": {"conditions": [{"type": "Ready", "status": %q}]}}`, ready)
	if err := c.admin.Status().Patch(t.Context(), pod, client.RawPatch(types.MergePatchType, patch)); err != nil {
		t.Fatalf("status of %s: %v", pod.Name, err)
	}
}

// podsOf returns the pods of the DaemonSet of a node.
func (c *cluster) podsOf(t *testing.T, name string) []core.Pod {
	t.Helper()
	var all core.PodList
	if err := c.admin.List(t.Context(), &all, client.InNamespace(namespace), client.MatchingFields{"spec.nodeName": name}); err != nil {
		t.Fatal(err)
	}
	return all.Items
}

// start starts ballast-fleet with the rights of a service account. It is started again if it ends, as the chart has
// it: a controller ends when it loses its lease, which a busy machine is enough for.
func (c *cluster) start(t *testing.T, name, account, nodeName string, args ...string) *node.Process {
	t.Helper()
	config := filepath.Join(c.dir, name+".kubeconfig")
	if err := os.WriteFile(config, []byte(c.Kubeconfig(c.Address, c.token(t, account, nodeName))), 0o600); err != nil {
		t.Fatal(err)
	}
	argv := append([]string{node.Binary(t, "ballast-fleet")}, args...)
	return node.Keep(c.whole, name, filepath.Join(c.dir, name+".log"), nil, []int{1}, append(argv, "--kubeconfig", config)...)
}

// join adds a node as its kubelet would, and starts its agent as the chart would.
func (c *cluster) join(t *testing.T, name string, r *node.Registry) *clusterNode {
	t.Helper()
	n := node.StartNode(c.whole, node.Options{Registry: r})
	c.create(t, &core.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/os": "linux", "kubernetes.io/hostname": name}},
		Spec:       core.NodeSpec{Taints: []core.Taint{{Key: taint, Effect: core.TaintEffectNoSchedule}, {Key: "example.com/gpu", Effect: core.TaintEffectNoSchedule}}},
	})
	cn := &clusterNode{Node: n, cri: n.CRI(c.whole), name: name, metrics: node.FreeAddress(t)}
	cn.agent = c.start(t, "agent-"+name, "ballast", name, "agent", "--name="+name, "--label="+label, "--taint="+taint, "--models", "--refresh=2s", "--metrics="+cn.metrics,
		"--socket="+filepath.Join(n.Run(), "fleet", "fleet.sock"))
	c.nodes[name] = cn
	return cn
}

// eventually waits until done returns nil.
func eventually(t *testing.T, what string, done func() error) {
	t.Helper()
	begin := time.Now()
	var err error
	for end := begin.Add(patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err = done(); err == nil {
			t.Logf("waited %v for %s", time.Since(begin).Round(100*time.Millisecond), what)
			return
		}
	}
	t.Fatalf("no %s after %v: %v", what, patience, err)
}

// set creates a ModelSet.
func (c *cluster) set(t *testing.T, name string, spec v1alpha1.ModelSetSpec) {
	t.Helper()
	c.create(t, &v1alpha1.ModelSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec})
}

// awaitSet waits until a set has a state: "have/nodes", and the status of Ready.
func (c *cluster) awaitSet(t *testing.T, name, want string) {
	t.Helper()
	eventually(t, fmt.Sprintf("set %s to be %s", name, want), func() error {
		row, err := c.columns(t.Context(), name)
		if err != nil {
			return err
		}
		if got := fmt.Sprintf("%v/%v %v", row["Have"], row["Nodes"], row["Ready"]); got != want {
			return fmt.Errorf("%v", row)
		}
		return nil
	})
}

// columns returns what kubectl prints for a set.
func (c *cluster) columns(ctx context.Context, name string) (map[string]any, error) {
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(c.Kubeconfig(c.Address, "admin")))
	if err != nil {
		return nil, err
	}
	config.GroupVersion, config.NegotiatedSerializer, config.APIPath = &v1alpha1.GroupVersion, clientgoscheme.Codecs.WithoutConversion(), "/apis"
	k, err := restClient(config)
	if err != nil {
		return nil, err
	}
	p, err := k.Get().Resource("modelsets").Name(name).SetHeader("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	var table metav1.Table
	if err := json.NewDecoder(bytes.NewReader(p)).Decode(&table); err != nil {
		return nil, err
	}
	row := map[string]any{}
	for i, d := range table.ColumnDefinitions {
		row[d.Name] = table.Rows[0].Cells[i]
	}
	return row, nil
}

// modelNode returns the state of the models of a node, by reference.
func (c *cluster) modelNode(t *testing.T, name string) map[string]v1alpha1.ModelState {
	t.Helper()
	var n v1alpha1.ModelNode
	if err := c.admin.Get(t.Context(), client.ObjectKey{Name: name}, &n); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	by := map[string]v1alpha1.ModelState{}
	for _, s := range n.Status.List {
		by[s.Ref] = s
	}
	return by
}

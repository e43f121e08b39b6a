package kubelet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/test/e2e/node"
)

// An apiServer is as much of an API server as a kubelet needs to run pods with secrets, which pods
// from files cannot have: it lists, watches and keeps objects, and asks an admission webhook about
// new pods. It checks nothing.
// https://kubernetes.io/docs/reference/using-api/api-concepts/
type apiServer struct {
	address string
	webhook string // URL; empty: pods are created as they are

	mu      sync.Mutex
	changed chan struct{} // closed with the next change
	events  []watchEvent  // all changes; the version of an object is the length after its change
	objects map[objectKey]object
}

// An object is an object of the API.
type object = map[string]any

// An objectKey identifies an object.
type objectKey struct{ resource, namespace, name string }

type watchEvent struct {
	key    objectKey
	Type   string `json:"type"`
	Object object `json:"object"`
}

// resources are the kinds of the resources that the kubelet asks for.
var resources = map[string]struct{ kind, version string }{
	"pods": {"Pod", "v1"}, "nodes": {"Node", "v1"}, "services": {"Service", "v1"}, "secrets": {"Secret", "v1"},
	"configmaps": {"ConfigMap", "v1"}, "events": {"Event", "v1"},
	"leases":         {"Lease", "coordination.k8s.io/v1"},
	"runtimeclasses": {"RuntimeClass", "node.k8s.io/v1"},
	"csinodes":       {"CSINode", "storage.k8s.io/v1"}, "csidrivers": {"CSIDriver", "storage.k8s.io/v1"},
	"resourceslices": {"ResourceSlice", "resource.k8s.io/v1"}, "podcertificaterequests": {"PodCertificateRequest", "certificates.k8s.io/v1"},
	"clustertrustbundles": {"ClusterTrustBundle", "certificates.k8s.io/v1"},
}

// withAPI returns an API server, and an option of startNode that makes the kubelet use it.
func withAPI(t *testing.T) (*apiServer, func(*testing.T, *kubelet)) {
	a := &apiServer{changed: make(chan struct{}), objects: map[objectKey]object{}}
	a.address = node.Serve(t, a)
	room := object{"pods": "110", "cpu": "16", "memory": "64Gi", "ephemeral-storage": "64Gi"}
	a.put(objectKey{"nodes", "", nodeName}, object{"status": object{
		"capacity": room, "allocatable": room, "conditions": []object{{"type": "Ready", "status": "True"}},
	}})
	return a, func(t *testing.T, k *kubelet) {
		config := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],`+
			`"clusters":[{"name":"c","cluster":{"server":"http://%s"}}],"users":[{"name":"u","user":{}}]}`, a.address)
		file := filepath.Join(k.dir, "kubeconfig")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		k.api = a
		k.config["contentType"] = "application/json"
		k.flags = append(k.flags, "--kubeconfig", file)
	}
}

// put adds or replaces an object.
func (a *apiServer) put(k objectKey, o object) object {
	a.mu.Lock()
	defer a.mu.Unlock()
	typ := "MODIFIED"
	old, ok := a.objects[k]
	meta, _ := o["metadata"].(object)
	if meta == nil {
		meta = object{}
	}
	if !ok {
		typ = "ADDED"
		meta["uid"], meta["creationTimestamp"] = fmt.Sprintf("%08d-0000-4000-8000-%012d", len(a.events), len(k.name)), time.Now().UTC().Format(time.RFC3339)
	} else {
		was := old["metadata"].(object)
		meta["uid"], meta["creationTimestamp"] = was["uid"], was["creationTimestamp"]
	}
	meta["name"], meta["resourceVersion"] = k.name, strconv.Itoa(len(a.events)+1)
	if k.namespace != "" {
		meta["namespace"] = k.namespace
	}
	r := resources[k.resource]
	o["kind"], o["apiVersion"], o["metadata"] = r.kind, r.version, meta
	a.objects[k] = o
	a.change(watchEvent{k, typ, o})
	return o
}

// remove removes an object, and reports whether it was there.
func (a *apiServer) remove(k objectKey) (object, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	o, ok := a.objects[k]
	if ok {
		delete(a.objects, k)
		a.change(watchEvent{k, "DELETED", o})
	}
	return o, ok
}

// change requires a.mu.
func (a *apiServer) change(e watchEvent) {
	e.Object = maps.Clone(e.Object)
	a.events = append(a.events, e)
	close(a.changed)
	a.changed = make(chan struct{})
}

// get returns an object.
func (a *apiServer) get(k objectKey) (object, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	o, ok := a.objects[k]
	return o, ok
}

// ServeHTTP implements http.Handler.
func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if len(parts) > 2 && parts[0] == "apis" {
		parts = parts[1:]
	}
	parts = parts[min(2, len(parts)):] // "api/v1", or the group and its version
	var k objectKey
	if len(parts) > 2 && parts[0] == "namespaces" {
		k.namespace, parts = parts[1], parts[2:]
	}
	if len(parts) > 0 {
		k.resource = parts[0]
	}
	if len(parts) > 1 {
		k.name = parts[1]
	}
	if resources[k.resource].kind == "" {
		status(w, http.StatusNotFound)
		return
	}
	body := object{}
	if r.Method != http.MethodGet {
		p, err := io.ReadAll(r.Body)
		if err == nil && len(p) > 0 {
			err = json.Unmarshal(p, &body)
		}
		if err != nil {
			status(w, http.StatusBadRequest)
			return
		}
	}
	switch {
	case r.Method == http.MethodGet && k.name == "" && r.URL.Query().Get("watch") != "":
		a.watch(w, r, k)
	case r.Method == http.MethodGet && k.name == "":
		a.list(w, r, k)
	case r.Method == http.MethodPost && k.name == "":
		k.name, _ = body["metadata"].(object)["name"].(string)
		answer(w, http.StatusCreated, a.put(k, body))
	case r.Method == http.MethodPut && len(parts) == 2:
		answer(w, http.StatusOK, a.put(k, body))
	case r.Method == http.MethodDelete:
		o, ok := a.remove(k)
		answerIf(w, o, ok)
	case r.Method == http.MethodPatch && k.resource == "pods":
		o, ok := a.get(k)
		if ok {
			o = a.put(k, merged(o, object{"status": body["status"]}))
		}
		answerIf(w, o, ok)
	default: // GET, and the status of the node
		o, ok := a.get(k)
		answerIf(w, o, ok)
	}
}

// merged returns an object with a strategic merge patch, as far as the status of a pod needs it.
func merged(o, patch object) object {
	o = maps.Clone(o)
	for k, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(o, k)
		case object:
			was, _ := o[k].(object)
			if was == nil {
				was = object{}
			}
			o[k] = merged(was, v)
		case []any:
			was, _ := o[k].([]any)
			o[k] = mergedList(was, v)
		default:
			o[k] = v
		}
	}
	return o
}

// mergedList merges lists of objects by their names or types. Other lists are replaced.
func mergedList(list, patch []any) []any {
	list = slices.Clone(list)
	for _, p := range patch {
		item, ok := p.(object)
		if !ok || item["name"] == nil && item["type"] == nil {
			return patch
		}
		i := slices.IndexFunc(list, func(was any) bool {
			o, _ := was.(object)
			return o["name"] == item["name"] && o["type"] == item["type"]
		})
		if i < 0 {
			list = append(list, item)
			continue
		}
		list[i] = merged(list[i].(object), item)
	}
	return list
}

// fits reports whether a request for k asks for an object.
func fits(r *http.Request, k, other objectKey, o object) bool {
	if k.resource != other.resource || k.namespace != "" && k.namespace != other.namespace {
		return false
	}
	for _, field := range strings.Split(r.URL.Query().Get("fieldSelector"), ",") {
		name, want, _ := strings.Cut(field, "=")
		var got any
		switch name {
		case "metadata.name":
			got = other.name
		case "metadata.namespace":
			got = other.namespace
		case "spec.nodeName":
			spec, _ := o["spec"].(object)
			got = spec["nodeName"]
		default:
			continue
		}
		if got != strings.TrimPrefix(want, "=") {
			return false
		}
	}
	return true
}

func (a *apiServer) list(w http.ResponseWriter, r *http.Request, k objectKey) {
	a.mu.Lock()
	items := []object{}
	for other, o := range a.objects {
		if fits(r, k, other, o) {
			items = append(items, o)
		}
	}
	version := strconv.Itoa(len(a.events))
	a.mu.Unlock()
	kind := resources[k.resource]
	answer(w, http.StatusOK, object{"kind": kind.kind + "List", "apiVersion": kind.version, "metadata": object{"resourceVersion": version}, "items": items})
}

// watch sends changes from a version on, until the request ends. If asked to, it sends all objects first.
func (a *apiServer) watch(w http.ResponseWriter, r *http.Request, k objectKey) {
	next, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	initial := r.URL.Query().Get("sendInitialEvents") == "true"
	if initial {
		next = 0
	}
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	for {
		a.mu.Lock()
		events, changed := slices.Clone(a.events[min(next, len(a.events)):]), a.changed
		a.mu.Unlock()
		next += len(events)
		for _, e := range events {
			if fits(r, k, e.key, e.Object) {
				if err := encoder.Encode(e); err != nil {
					return
				}
			}
		}
		if initial {
			kind := resources[k.resource]
			mark := object{"kind": kind.kind, "apiVersion": kind.version, "metadata": object{
				"resourceVersion": strconv.Itoa(next), "annotations": object{"k8s.io/initial-events-end": "true"},
			}}
			if err := encoder.Encode(watchEvent{Type: "BOOKMARK", Object: mark}); err != nil {
				return
			}
			initial = false
		}
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

func answer(w http.ResponseWriter, code int, o object) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(o) // the kubelet asks again
}

func answerIf(w http.ResponseWriter, o object, ok bool) {
	if !ok {
		status(w, http.StatusNotFound)
		return
	}
	answer(w, http.StatusOK, o)
}

func status(w http.ResponseWriter, code int) {
	reason := map[int]string{http.StatusNotFound: "NotFound"}[code]
	answer(w, code, object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code})
}

// pods returns the pods with the status that the kubelet has reported.
func (a *apiServer) pods() (all []pod, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k, o := range a.objects {
		if k.resource != "pods" {
			continue
		}
		var b pod
		p, err := json.Marshal(o)
		if err == nil {
			err = json.Unmarshal(p, &b)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	return all, nil
}

// decoded returns v as an object of the API.
func decoded(t *testing.T, v any) object {
	t.Helper()
	p, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	o := object{}
	if err := json.Unmarshal(p, &o); err != nil {
		t.Fatal(err)
	}
	return o
}

// create creates a pod, as changed by the webhook. Like a static pod it has the name of the node at its
// end, so that the tests find it.
func (a *apiServer) create(t *testing.T, p pod) {
	t.Helper()
	p.Metadata.Name = podName(p.Metadata.Name)
	o := decoded(t, p)
	a.admit(t, o)
	// An API server sets these for every pod.
	spec := o["spec"].(object)
	maps.Copy(spec, object{
		"nodeName": nodeName, "restartPolicy": "Always", "dnsPolicy": "Default", "enableServiceLinks": false,
		"automountServiceAccountToken": false, "securityContext": object{}, "schedulerName": "default-scheduler",
	})
	a.put(objectKey{"pods", p.Metadata.Namespace, p.Metadata.Name}, o)
}

// delete deletes pods. The kubelet ends them and then removes the objects.
func (a *apiServer) delete(pods ...pod) {
	for _, p := range pods {
		k := objectKey{"pods", p.Metadata.Namespace, podName(p.Metadata.Name)}
		o, ok := a.get(k)
		if !ok {
			continue
		}
		o = maps.Clone(o)
		meta := maps.Clone(o["metadata"].(object))
		meta["deletionTimestamp"], meta["deletionGracePeriodSeconds"] = time.Now().UTC().Format(time.RFC3339), 1
		o["metadata"] = meta
		a.put(k, o)
	}
}

// admit asks the webhook about a new pod and applies its answer.
// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
func (a *apiServer) admit(t *testing.T, o object) {
	t.Helper()
	if a.webhook == "" {
		return
	}
	p, err := json.Marshal(object{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": object{"uid": "1", "operation": "CREATE", "object": o}})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(a.webhook, "application/json", bytes.NewReader(p))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var review struct {
		Response struct {
			Allowed bool
			Patch   []byte
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&review); err != nil || !review.Response.Allowed {
		t.Fatalf("webhook: %s, %v", resp.Status, err)
	}
	var patch []struct{ Op, Path, Value string }
	if err := json.Unmarshal(review.Response.Patch, &patch); err != nil {
		t.Fatal(err)
	}
	for _, c := range patch {
		var i int
		if _, err := fmt.Sscanf(c.Path, "/spec/volumes/%d/image/reference", &i); err != nil || c.Op != "replace" {
			t.Fatalf("unknown patch %+v", c)
		}
		o["spec"].(object)["volumes"].([]any)[i].(object)["image"].(object)["reference"] = c.Value
	}
}

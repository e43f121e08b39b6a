package kubelet

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
)

// Types of artifacts.
const (
	ociManifest   = "application/vnd.oci.image.manifest.v1+json"
	modelManifest = "application/vnd.cncf.model.manifest.v1+json"
	modelConfig   = "application/vnd.cncf.model.config.v1+json"
)

// unreachableHost is a registry that does not answer.
const unreachableHost = "unreachable.example"

// A refusal is a pod that cannot start, and its status.
type refusal struct {
	name, ref string
	reasons   []string // ErrImagePull and ImagePullBackOff if there are none
	words     []string // each exactly once
	doc       string   // the part that the documentation explains; also in events
}

// testRefused runs pods whose model is missing or cannot be used. Status and events name the model, the
// cause and, if there is one, the remedy.
func testRefused(t *testing.T, k *kubelet) {
	n := k.node
	n.Upstream(t, unreachableHost, "127.0.0.1:1")
	late := converttest.ModelPackRaw(converttest.Files(weights(20, 1<<20)))
	late.Name = "late"
	list := []refusal{
		{name: "no-tag", ref: n.Registry.Ref("models/late", "1"), words: []string{"resolve image: " + n.Registry.Ref("models/late", "1") + ": "}, doc: ": not found"},
		{name: "no-host", ref: unreachableHost + "/team/model:1", words: []string{"unavailable: " + unreachableHost + "/team/model:1: "}, doc: "connect: connection refused"},
		{name: "bad-name", ref: n.Registry.Host + "/Team/model:1", reasons: []string{"InvalidImageName"}, words: []string{"repository name (Team/model)"}, doc: "must be lowercase"},
	}
	list = append(list, k.oddArtifacts(t)...)
	list = append(list, k.badTransfers(t)...)
	for _, r := range list {
		k.apply(t, k.pod(r.name, r.ref, "IfNotPresent"))
	}
	for _, r := range list {
		t.Run(r.name, func(t *testing.T) {
			reasons := r.reasons
			if reasons == nil {
				reasons = []string{"ErrImagePull", "ImagePullBackOff"}
			}
			message := k.awaitWaiting(t, r.name, reasons...)
			t.Log(message)
			wantMessage(t, message, append(r.words, documented(t, r.doc))...)
			eventually(t, "event", func() error { // the kubelet logs events in the background
				if !slices.ContainsFunc(k.events(t, r.name), func(e event) bool {
					return e.Type == "Warning" && strings.Contains(e.Message, r.doc)
				}) {
					return fmt.Errorf("no event has %q:\n%s", r.doc, k.tell(t, r.name))
				}
				return nil
			})
		})
	}

	// The missing model is pushed: the pod starts.
	push(t, k, late)
	k.awaitRunning(t, k.pod("no-tag", "", ""))
	k.wantFiles(t, "no-tag", "main", "/model", states(late))
}

// broken is in messages about artifacts that violate their format.
const broken = "; the artifact is invalid; its author must correct it"

// oddArtifacts pushes artifacts that cannot be mounted.
func (k *kubelet) oddArtifacts(t *testing.T) (list []refusal) {
	config := []byte("{}")
	d := digest.FromBytes(config)
	for _, a := range []struct {
		name, configType, layerType, annotations, doc string
		reasons, words                                []string
	}{
		{"chart", "application/vnd.cncf.helm.config.v1+json", "application/vnd.cncf.helm.chart.content.v1.tar+gzip", "{}", "failed to prepare for image volume",
			[]string{"CreateContainerError"}, []string{"ImageVolumeMountFailed"}},
		{"later", modelConfig, "application/vnd.cncf.model.weight.v2.raw", `{"org.cncf.model.filepath":"m"}`, "; this version of ballast cannot mount it",
			nil, []string{"unsupported: " + k.node.Registry.Ref("odd/later", "1") + ": ", "unknown version v2"}},
		{"nameless", modelConfig, "application/vnd.cncf.model.doc.v1.raw", "{}", broken,
			nil, []string{k.node.Registry.Ref("odd/nameless", "1") + ": modelpack model: ", "without the annotation org.cncf.model.filepath"}},
		{"leaves", modelConfig, "application/vnd.cncf.model.weight.v1.raw", `{"org.cncf.model.filepath":"../../etc/passwd"}`, broken,
			nil, []string{`path "../../etc/passwd": leaves the model`}},
	} {
		m := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":%q,"digest":%q,"size":2},"layers":[{"mediaType":%q,"digest":%q,"size":2,"annotations":%s}]}`,
			ociManifest, a.configType, d, a.layerType, d, a.annotations)
		k.node.Registry.Push(t, "odd/"+a.name, "1", node.Artifact{MediaType: ociManifest, Manifest: m, Blobs: map[digest.Digest][]byte{d: config}})
		list = append(list, refusal{a.name, k.node.Registry.Ref("odd/"+a.name, "1"), a.reasons, a.words, a.doc})
	}
	k.node.Registry.Push(t, "odd/cut", "1", node.Artifact{MediaType: modelManifest, Manifest: []byte(`{"schemaVersion":2,`)})
	return append(list, refusal{name: "cut", ref: k.node.Registry.Ref("odd/cut", "1"),
		words: []string{"unsupported: " + k.node.Registry.Ref("odd/cut", "1") + ": manifest: not JSON: unexpected EOF"}, doc: broken})
}

// badTransfers pushes models for which the registry has wrong responses.
func (k *kubelet) badTransfers(t *testing.T) (list []refusal) {
	r := k.node.Registry
	for i, f := range []struct {
		name     string
		manifest bool // the fault is for the manifest, otherwise for the weights
		fault    node.Fault
		words    []string
		doc      string
	}{
		{"wrong-bytes", false, node.Fault{Flip: true}, []string{`fetch model ` + r.Host + `/models/wrong-bytes: layer 4 ("model.gguf"): blob sha256:`}, "; the registry's copy is damaged, push the model again"},
		{"no-weights", false, node.Fault{Status: http.StatusNotFound}, []string{`layer 4 ("model.gguf"): `}, "answered 404 Not Found"},
		{"no-access", true, node.Fault{Status: http.StatusForbidden}, []string{"denied: " + r.Ref("models/no-access", "1") + ": "}, "answered 403 Forbidden; ask the registry's owner for access, or use other credentials"},
		{"busy", true, node.Fault{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}}}, []string{"unavailable: " + r.Ref("models/busy", "1") + ": "}, "answered 429 Too Many Requests"},
		{"broken", true, node.Fault{Status: http.StatusInternalServerError}, []string{"unavailable: " + r.Ref("models/broken", "1") + ": "}, "answered 500 Internal Server Error"},
	} {
		b := converttest.ModelPackRaw(converttest.Files(weights(byte(30+i), 3<<20)))
		b.Name = f.name
		ref := push(t, k, b)
		f.fault.Match = node.Blob(digest.FromBytes(b.Files["model.gguf"].Data))
		if f.manifest {
			f.fault.Match = func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/models/"+f.name+"/manifests/") }
		}
		r.Wire.Add(f.fault)
		list = append(list, refusal{name: f.name, ref: ref, words: f.words, doc: f.doc})
	}
	return list
}

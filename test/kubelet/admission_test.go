package kubelet

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// teamHost is the registry of the models of TestAdmission.
const teamHost = "team.example"

// A pinner is an admission webhook that replaces the tags of volumes by the digests that the registry
// shows, as policy-controller and Kyverno do. It can read everything.
type pinner struct {
	registry *node.Registry
	keepTag  bool // the tag stays before the digest, as with Kyverno
}

// ServeHTTP implements http.Handler.
func (p *pinner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review struct {
		Request struct {
			UID    string
			Object pod
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var patch []map[string]string
	for i, v := range review.Request.Object.Spec.Volumes {
		pinned, err := p.pin(v.Image.Reference)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		patch = append(patch, map[string]string{"op": "replace", "path": fmt.Sprintf("/spec/volumes/%d/image/reference", i), "value": pinned})
	}
	encoded, err := json.Marshal(patch)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	answer(w, http.StatusOK, object{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": object{
		"uid": review.Request.UID, "allowed": true, "patchType": "JSONPatch", "patch": encoded,
	}})
}

// pin returns a reference with the digest that the registry has for its tag.
func (p *pinner) pin(ref string) (string, error) {
	name, tag, _ := strings.Cut(ref, ":")
	_, repository, _ := strings.Cut(name, "/")
	req, err := http.NewRequest(http.MethodHead, "http://"+p.registry.Host+"/v2/"+repository+"/manifests/"+tag, nil)
	if err != nil {
		return "", err
	}
	req.Header["Accept"] = []string{ociManifest, modelManifest, ocispec.MediaTypeImageIndex, "application/vnd.docker.distribution.manifest.v2+json", "*/*"}
	if p.registry.User != "" {
		req.SetBasicAuth(p.registry.User, p.registry.Password)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	resp.Body.Close()
	d, err := digest.Parse(resp.Header.Get("Docker-Content-Digest"))
	if err != nil || resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s, %w", ref, resp.Status, err)
	}
	if p.keepTag {
		name = ref
	}
	return name + "@" + d.String(), nil
}

// An admitted is a model of TestAdmission.
type admitted struct {
	*converttest.Built
	refused bool // by its digest: containerd cannot mount it
	plain   bool // containerd unpacks its layers itself
}

// admittedModels are the models: of all formats, with different configs.
func admittedModels() []admitted {
	files := func(seed byte) []converttest.File { return converttest.Files(weights(seed, 1<<20)) }
	return []admitted{
		{converttest.ModelPackRaw(files(100)), false, false},
		{converttest.ModelPackTar(files(101)), false, false},
		{converttest.CNAI(files(102)), false, false},
		{converttest.CNAIEarly(files(103), converttest.EarlyConfigFull), false, true},
		{converttest.KitOps(files(104)), false, false},
		{converttest.Ollama(files(105), converttest.OllamaConfigNew), false, false},
		{converttest.Ollama(files(106), converttest.OllamaConfigOld), true, false},
		{converttest.DockerAIGGUF(files(107)), true, false},
	}
}

// TestAdmissionPublic and TestAdmissionPrivate run pods of two tenants whose volumes an admission
// webhook has changed to the digests of the registry. One tenant has a secret for it. Public models
// are mounted for both, private ones for the one with the secret only, also when the node has them.
func TestAdmissionPublic(t *testing.T) { testAdmission(t, false) }

func TestAdmissionPrivate(t *testing.T) { testAdmission(t, true) }

func testAdmission(t *testing.T, private bool) {
	api, use := withAPI(t)
	k := startNode(t, node.Options{}, nil, use)
	r := node.StartRegistry(t, t.TempDir())
	k.node.Upstream(t, teamHost, r.Host)

	ok, refused := map[string]map[string]node.FileState{}, map[string]string{} // files, and the digest to use, by name
	for _, m := range admittedModels() {
		r.Push(t, "team/"+m.Name, "1", artifact(m.Built))
		switch {
		case m.refused:
			refused[m.Name] = k.digestOf(t, r, m.Name)
		case m.plain:
			ok[m.Name] = nil
		default:
			ok[m.Name] = states(m.Built)
		}
	}
	index := converttest.ModelPackRaw(converttest.Files(weights(108, 1<<20)))
	r.Push(t, "team/index", "child", artifact(index))
	for name, platform := range map[string]*ocispec.Platform{"index": {OS: "linux", Architecture: runtime.GOARCH}, "vague": nil} {
		r.Push(t, "team/"+name, "child", artifact(index))
		r.Push(t, "team/"+name, "1", indexOf(t, index, platform))
	}
	ok["index"], refused["vague"] = states(index), k.digestOf(t, r, "vague")
	if private {
		r.User, r.Password = "alice", "password-of-alice"
		node.Belongs(r.Password, r.Host)
	}

	login, err := json.Marshal(map[string]any{"auths": map[string]userPass{teamHost: {"alice", "password-of-alice"}}})
	if err != nil {
		t.Fatal(err)
	}
	api.put(objectKey{"secrets", "alice", "team"}, object{
		"type": "kubernetes.io/dockerconfigjson", "data": object{".dockerconfigjson": base64.StdEncoding.EncodeToString(login)},
	})
	w := &pinner{registry: r}
	api.webhook = "http://" + node.Serve(t, w)
	var all []pod
	t.Cleanup(func() { api.delete(all...) })
	create := func(tenant, name string, models ...string) pod {
		p := k.pod(tenant+"-"+name, "", "")
		p.Metadata.Namespace = tenant
		p.Spec.Volumes, p.Spec.Containers[0].Mounts = nil, nil
		if tenant == "alice" {
			p.Spec.Secrets = []secretName{{"team"}}
		}
		for _, m := range models {
			p.Spec.Volumes = append(p.Spec.Volumes, volume{m, imageVolume{teamHost + "/team/" + m + ":1", "IfNotPresent"}})
			p.Spec.Containers[0].Mounts = append(p.Spec.Containers[0].Mounts, mount{Volume: m, Path: "/models/" + m})
		}
		all = append(all, p)
		api.create(t, p)
		return p
	}
	wantAll := func(p pod) {
		t.Helper()
		k.awaitRunning(t, p)
		for name, files := range ok {
			if files != nil {
				k.wantFiles(t, p.Metadata.Name, "main", "/models/"+name, files)
			} else if got, err := k.cri.List(k.container(t, p.Metadata.Name, "main"), "/models/"+name); err != nil || len(got) == 0 {
				t.Errorf("%s in pod %s: %d files, %v", name, p.Metadata.Name, len(got), err)
			}
		}
	}
	wantNone := func(p pod, word string) {
		t.Helper()
		if m := k.awaitWaiting(t, p.Metadata.Name, "ErrImagePull", "ImagePullBackOff"); !strings.Contains(m, word) {
			t.Errorf("%s: the message lacks %q:\n%s", p.Metadata.Name, word, m)
		}
	}
	names := func(m map[string]map[string]node.FileState) (l []string) {
		for name := range m {
			l = append(l, name)
		}
		slices.Sort(l)
		return l
	}(ok)

	wantAll(create("alice", "all", names...))
	w.keepTag = true
	wantAll(create("alice", "again", names...))
	if !private {
		wantAll(create("bob", "all", names...))
	} else {
		for _, name := range names { // the node has it, and the kubelet asks for it without a secret
			wantNone(create("bob", name, name), documented(t, "pull access denied"))
		}
	}
	for name, use := range refused {
		wantNone(create("alice", name, name), use)
	}
}

// digestOf returns the digest of the converted image of a model of the registry r.
func (k *kubelet) digestOf(t *testing.T, r *node.Registry, name string) string {
	t.Helper()
	out := k.node.Ballast("digest", "-q", r.Ref("team/"+name, "1"))
	if out.Err != nil {
		t.Fatalf("%v\n%s", out.Err, out.Output())
	}
	return strings.TrimSpace(out.Stdout)
}

// indexOf returns an index with one model.
func indexOf(t *testing.T, b *converttest.Built, p *ocispec.Platform) node.Artifact {
	t.Helper()
	i := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{{
		MediaType: ociManifest, ArtifactType: modelManifest, Digest: b.Digest(), Size: int64(len(b.Manifest)), Platform: p,
	}}}
	i.SchemaVersion = 2
	m, err := json.Marshal(i)
	if err != nil {
		t.Fatal(err)
	}
	return node.Artifact{MediaType: i.MediaType, Manifest: m}
}

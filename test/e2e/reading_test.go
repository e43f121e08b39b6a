package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/signature/oms"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestOneReading pulls documents in which containerd would read something else than a signature covers: a team has
// signed the files of a model, and a stranger, who has no key, puts an image beside it.
func TestOneReading(t *testing.T) {
	private, public := converttest.KeyPair(t, t.TempDir(), "team")
	n := node.StartNode(t, node.Options{Config: "[[verify.rule]]\nmatch = \"*/team/*\"\nmode = \"enforce\"\nany = [{type = \"oms\", key = \"" + public + "\"}]\n"})
	files := []converttest.File{{Path: "model.gguf", Data: weights(92, 1<<20), Mode: 0o644}}
	sig := omsSignature(t, private, map[string]converttest.File{"model.gguf": files[0]})
	b := converttest.ModelPackRaw(append(files, converttest.File{Path: oms.SignatureFile, Data: sig, Mode: 0o644}))
	n.Registry.Push(t, "team/m", "model", artifact(b))
	if out := n.Ballast("convert", n.Registry.Ref("team/m", "model"), n.Registry.Ref("team/m", "ahead"), "--as", "ballast"); out.Err != nil {
		t.Fatal(out.Output())
	}
	honest, m := imageIn(t, n, "team/m", "ahead")
	var layers [][]node.File // as many as the image has, so that their digests fit into its config
	for i := range m.Layers {
		layers = append(layers, []node.File{{Path: "model.gguf", Mode: 0o644, Data: fmt.Appendf(nil, "BYTES THAT NOBODY SIGNED %d", i)}})
	}
	evil := node.Image(t, []string{"/x"}, layers...)
	var evilManifest ocispec.Manifest
	var evilConfig ocispec.Image
	decodeJSON(t, evil.Manifest, &evilManifest)
	decodeJSON(t, evil.Blobs[evilManifest.Config.Digest], &evilConfig)
	n.Registry.Push(t, "free/image", "1", evil)
	n.Registry.Push(t, "team/m", "image", evil)
	mustPull(t, n, "ballast", n.Registry.Ref("free/image", "1")) // no rule applies: its layers are unpacked

	index := func(system, architecture string) node.Artifact {
		p := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%q,"digest":%q,"size":%d,"platform":{"os":%q,"architecture":%q}},`+
			`{"mediaType":%q,"artifactType":"application/vnd.cncf.model.manifest.v1+json","digest":%q,"size":%d}]}`,
			ocispec.MediaTypeImageIndex, ocispec.MediaTypeImageManifest, digest.FromBytes(evil.Manifest), len(evil.Manifest), system, architecture,
			ocispec.MediaTypeImageManifest, b.Digest(), len(b.Manifest))
		return node.Artifact{Manifest: p, MediaType: ocispec.MediaTypeImageIndex}
	}
	folded := func(key string, value any) node.Artifact {
		p, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		a := honest
		a.Manifest = append(bytes.TrimSuffix(bytes.Clone(honest.Manifest), []byte("}")), fmt.Sprintf(",%q:%s}", key, p)...)
		return a
	}
	config := func(edit func(map[string]any)) node.Artifact { return withConfig(t, honest, m, edit) }
	environment := config(func(c map[string]any) {
		c["config"].(map[string]any)["Env"] = []string{"EVIL=of the model"}
		c["config"].(map[string]any)["Labels"] = map[string]string{"containerd.io/restart.loguri": "binary:///bin/true"}
	})
	ids := func(c map[string]any) { c["rootfs"].(map[string]any)["diff_ids"] = evilConfig.RootFS.DiffIDs }
	refused := func(repository, tag string, a node.Artifact, words ...string) {
		t.Helper()
		n.Registry.Push(t, repository, tag, a)
		ref := n.Registry.Ref(repository, tag)
		for _, flags := range [][]string{nil, {"--local"}} {
			wantError(t, n.Pull("ballast", ref, flags...), words...)
		}
		if id, err := n.CRI(t).Pull(ref, ""); err == nil {
			t.Errorf("%s: a kubelet pulls %s", ref, id)
		}
	}
	for i, system := range []string{"linux", "Linux", "LINUX"} {
		refused("team/m", fmt.Sprint("index-", i), index(system, runtime.GOARCH), "refused by [[verify.rule]]")
	}
	refused("team/m", "alias", index("linux", map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]), "refused by [[verify.rule]]")
	refused("team/m", "layers", folded("Layers", evilManifest.Layers), "which some readers take for")
	refused("team/m", "config", folded("CONFIG", evilManifest.Config), "which some readers take for")
	refused("team/m", "diffids", config(ids), "that of the layer is")
	refused("team/m", "environment", environment, "a model sets")
	refused("free/m", "environment", environment, "a model sets")
	refused("free/m", "diffids", config(ids), "that of the layer is")

	ref := n.Registry.Ref("team/m", "ahead")
	for _, flags := range [][]string{nil, {"--local"}} {
		mustPull(t, n, "ballast", ref, flags...)
		wantFiles(t, n, ref, states(b))
	}
	if _, err := n.CRI(t).Pull(ref, ""); err != nil {
		t.Error(err)
	}
	if out := n.RunIn("ballast", ref, `$B env`); out.Err != nil || strings.Contains(out.Stdout, "EVIL") {
		t.Errorf("environment: %v\n%s", out.Err, out.Output())
	}
	if out := n.Ballast("verify", "--signatures", ref); out.Err != nil || !strings.HasPrefix(out.Stdout, "accepted") {
		t.Errorf("verify --signatures: %v\n%s", out.Err, out.Output())
	}
}

// imageIn reads an image of the node's registry.
func imageIn(t *testing.T, n *node.Node, repository, tag string) (a node.Artifact, m ocispec.Manifest) {
	t.Helper()
	a = node.Artifact{Manifest: fetched(t, n, "/v2/"+repository+"/manifests/"+tag), MediaType: ocispec.MediaTypeImageManifest, Blobs: map[digest.Digest][]byte{}}
	decodeJSON(t, a.Manifest, &m)
	for _, d := range append(slices.Clone(m.Layers), m.Config) {
		a.Blobs[d.Digest] = fetched(t, n, "/v2/"+repository+"/blobs/"+d.Digest.String())
	}
	return a, m
}

// withConfig returns an image with another config.
func withConfig(t *testing.T, a node.Artifact, m ocispec.Manifest, edit func(map[string]any)) node.Artifact {
	t.Helper()
	var c map[string]any
	decodeJSON(t, a.Blobs[m.Config.Digest], &c)
	edit(c)
	p, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	m.Config.Digest, m.Config.Size = digest.FromBytes(p), int64(len(p))
	out := node.Artifact{MediaType: a.MediaType, Blobs: map[digest.Digest][]byte{m.Config.Digest: p}}
	for _, d := range m.Layers {
		out.Blobs[d.Digest] = a.Blobs[d.Digest]
	}
	if out.Manifest, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	return out
}

func decodeJSON(t *testing.T, p []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(p, v); err != nil {
		t.Fatal(err)
	}
}

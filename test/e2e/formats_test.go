package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestPullIndex pulls an index of models, whose entries have no platform.
func TestPullIndex(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	b := converttest.ModelPackRaw(converttest.Files(weights(70, 1<<20)))
	push(t, n, b)
	index := node.Artifact{
		MediaType: "application/vnd.oci.image.index.v1+json",
		Manifest: fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[`+
			`{"mediaType":"application/vnd.oci.image.manifest.v1+json","artifactType":"application/vnd.cncf.model.manifest.v1+json","digest":%q,"size":%d}]}`,
			b.Digest(), len(b.Manifest)),
	}
	n.Registry.Push(t, "models/"+b.Name, "index", index)
	ref := n.Registry.Ref("models/"+b.Name, "index")
	mustPull(t, n, "ballast", ref)
	wantFiles(t, n, ref, states(b))
}

// TestPullIndexOfCog pulls an index of Cog: containerd picks the image that runs the model; the weights beside it are a
// model by their own name.
func TestPullIndexOfCog(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	image, b := node.Busybox(t), converttest.Cog(converttest.Files(weights(73, 1<<20)))
	const name = "models/cog"
	n.Registry.Push(t, name, "image", image)
	n.Registry.Push(t, name, "weights", artifact(b))
	n.Registry.Push(t, name, "v1", node.Artifact{
		MediaType: "application/vnd.oci.image.index.v1+json",
		Manifest: fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[`+
			`{"mediaType":%q,"digest":%q,"size":%d,"platform":{"os":"linux","architecture":"amd64"}},`+
			`{"mediaType":"application/vnd.oci.image.manifest.v1+json","artifactType":"application/vnd.cog.weight.v1","digest":%q,"size":%d,`+
			`"platform":{"os":"unknown","architecture":"unknown"},"annotations":{"run.cog.weight.name":"a-model"}}]}`,
			image.MediaType, digest.FromBytes(image.Manifest), len(image.Manifest), b.Digest(), len(b.Manifest)),
	})
	index, model := n.Registry.Ref(name, "v1"), n.Registry.Ref(name, "weights")
	mustPull(t, n, "ballast", index)
	if out := n.RunIn("ballast", index, "$B cat /data/kept"); !strings.Contains(out.Stdout, "kept") {
		t.Errorf("the image: %v: %s", out.Err, out.Output())
	}
	mustPull(t, n, "ballast", model)
	wantFiles(t, n, model, states(b))
}

// TestPullRefused pulls known formats that are not supported: the error names them.
func TestPullRefused(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	config := []byte("{}")
	for _, tt := range []struct {
		name, word, manifestType, configType, layerType string
	}{
		{"kitops", "kitops", "application/vnd.oci.image.manifest.v1+json", "application/vnd.kitops.modelkit.config.v1+json", "application/vnd.kitops.modelkit.model.v1.tar"},
		{"later", "weight.v2", "application/vnd.oci.image.manifest.v1+json", "application/vnd.cncf.model.config.v1+json", "application/vnd.cncf.model.weight.v2.raw"},
		{"ollama-list", "ollama", "application/vnd.ollama.manifest.list.v2+json", "application/vnd.docker.container.image.v1+json", "application/vnd.ollama.image.model"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := digest.FromBytes(config)
			a := node.Artifact{MediaType: tt.manifestType, Blobs: map[digest.Digest][]byte{d: config}}
			a.Manifest = fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":%q,"digest":%q,"size":2},"layers":[{"mediaType":%q,"digest":%q,"size":2}]}`,
				tt.manifestType, tt.configType, d, tt.layerType, d)
			n.Registry.Push(t, "refused/"+tt.name, "1", a)
			out := n.Pull("ballast", n.Registry.Ref("refused/"+tt.name, "1"))
			t.Logf("ctr says: %s", out.Stderr)
			wantError(t, out, tt.word)
		})
	}
}

// TestPullByDigest pulls a model by the digest of its original manifest, which no container can have as
// its root, and by that of the converted image.
func TestPullByDigest(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	b := converttest.ModelPackRaw(converttest.Files(weights(71, 1<<20)))
	tag := push(t, n, b)
	byOrigin := n.Registry.Host + "/models/" + b.Name + "@" + b.Digest().String()
	out := n.Pull("ballast", byOrigin)
	t.Logf("ctr says: %s", out.Stderr)
	if out.Err == nil {
		if got, err := n.List("ballast", byOrigin, "/"); err == nil {
			t.Errorf("a container of the origin's digest sees %v, want an error", got)
		}
	}
	mustPull(t, n, "ballast", tag)
	converted := imageDigest(t, n, tag)
	byDigest := n.Registry.Host + "/models/" + b.Name + "@" + converted
	mustPull(t, n, "ballast", byDigest)
	wantFiles(t, n, byDigest, states(b))
}

// TestPullSecret pulls a model that requires credentials, with those of the client.
func TestPullSecret(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	n.Registry.User, n.Registry.Password = "user", "secret"
	b := converttest.ModelPackTar(converttest.Files(weights(72, 1<<20)))
	ref := push(t, n, b)
	n.Registry.Push(t, "busybox", "1", node.Busybox(t))

	wantError(t, n.Pull("ballast", ref))
	mustPull(t, n, "ballast", ref, "--user", "user:secret")
	wantFiles(t, n, ref, states(b))

	client := n.CRI(t)
	auth := &cri.AuthConfig{Username: "user", Password: "secret"}
	if _, err := client.Pull(ref, ""); err == nil {
		t.Error("pull without the secret: got no error")
	}
	busybox, err := client.PullAs(n.Registry.Ref("busybox", "1"), "", auth)
	if err != nil {
		t.Fatal(err)
	}
	model, err := client.PullAs(ref, "", auth)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.RunPod(t, "").Run(busybox, node.ImageMount{Image: model, Path: "/model"})
	if err != nil {
		t.Fatal(err)
	}
	wantVolume(t, client, c, "/model", states(b))
}

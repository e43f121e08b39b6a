package kubelet

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
)

// away is a registry that the node cannot reach.
const away = "registry.away.example"

// TestAway starts pods with an imported and with a seeded model on a node that never asks their registry.
func TestAway(t *testing.T) {
	imported, seeded := converttest.ModelPackRaw(converttest.Files(weights(31, 1<<20))), converttest.Ollama(converttest.Files(weights(32, 1<<20)), converttest.OllamaConfigNew)
	models := map[string]*converttest.Built{away + "/team/imported": imported, away + "/team/seeded": seeded}
	k := startNode(t, node.Options{}, nil, func(t *testing.T, k *kubelet) {
		seed(t, k, away+"/team/seeded:v1", seeded)
		archive := filepath.Join(k.node.Dir, "model.tar")
		p := node.TarOf(t, node.LayoutFiles(t, map[string]*converttest.Built{away + "/team/imported:v1": imported}))
		if err := os.WriteFile(archive, p, 0o644); err != nil {
			t.Fatal(err)
		}
		if out := k.node.Ballast("import", archive); out.Err != nil {
			t.Fatalf("ballast import: %v\n%s", out.Err, out.Output())
		}
	})
	for repository, b := range models {
		out := k.node.Ballast("inspect", "-o", "json", repository+":v1")
		var image struct{ Digest string }
		if err := json.Unmarshal([]byte(out.Stdout), &image); out.Err != nil || err != nil {
			t.Fatalf("ballast inspect: %v, %v\n%s", out.Err, err, out.Output())
		}
		name, converted := filepath.Base(repository), repository+"@"+image.Digest
		for id, ref := range map[string]string{name: repository + ":v1", name + "-converted": converted} {
			k.run(t, k.pod(id, ref, "Always"))
			k.wantFiles(t, id, "main", "/model", states(b))
		}
		k.apply(t, k.pod(name+"-origin", repository+"@"+digest.FromBytes(b.Manifest).String(), "IfNotPresent"))
		wantMessage(t, k.awaitWaiting(t, name+"-origin", "ErrImagePull", "ImagePullBackOff"), "its registry does not answer", converted)
	}
}

// seed gives the node a root that was made where the registry answers, and makes the registry one that is never asked.
func seed(t *testing.T, k *kubelet, ref string, b *converttest.Built) {
	t.Helper()
	n := k.node
	n.Registry.Push(t, "team/seeded", "v1", artifact(b))
	n.Upstream(t, away, n.Registry.Host)
	dir := filepath.Join(n.Dir, "seed")
	if out := n.Ballast("seed", dir, ref); out.Err != nil {
		t.Fatalf("ballast seed: %v\n%s", out.Err, out.Output())
	}
	offline := "version = 1\n[upstream]\noffline = [\"" + away + "\"]\n"
	if err := os.WriteFile(filepath.Join(n.Dir, "conf.d", "offline.toml"), []byte(offline), 0o644); err != nil {
		t.Fatal(err)
	}
	n.Ballastd.Stop(t)
	n.KillHolder(t)
	for _, argv := range [][]string{{"umount", "-l", filepath.Join(n.Root(), "lazy")}, {"rm", "-rf", n.Root()}, {"cp", "-a", dir, n.Root()}} {
		if out := node.Command(t.Context(), nil, argv...); out.Err != nil && argv[0] != "umount" {
			t.Fatalf("%v: %v\n%s", argv, out.Err, out.Output())
		}
	}
	n.StartBallastd(t)
}

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// TestPullGatedHub prefetches a gated repository of the Hub, whose files the Hub lists to everybody, with the token of
// the node. Who has no token gets nothing of it; a pull secret that was granted access does.
func TestPullGatedHub(t *testing.T) {
	hub := converttest.NewHub(t)
	host := strings.TrimPrefix(hub.URL, "http://")
	files := map[string]converttest.HubFile{"README.md": {Data: []byte("read me")}, "m.gguf": {Data: weights(122, 9<<20), LFS: true}}
	hub.Push("org/gated", "main", files)
	hub.Gate("org/gated", "hf_granted", "hf_tenant")
	n := node.StartNode(t, node.Options{
		Wrap:   []string{"env", "HF_ENDPOINT=" + hub.URL, "HF_TOKEN=hf_granted"},
		Config: fmt.Sprintf("[upstream]\nallow_hosts = [%q]\n", strings.TrimPrefix(hub.CDN.URL, "http://")),
	})
	n.Upstream(t, "hf.co", host)
	node.Belongs("hf_granted", host)
	node.Belongs("hf_tenant", host)
	const ref = "hf.co/org/gated:main"
	if out := n.Ballast("prefetch", ref); out.Err != nil {
		t.Fatalf("%v\n%s", out.Err, out.Output())
	}
	wantError(t, n.Pull("ballast", ref), "pull access denied", "no credentials for hf.co/")
	cri := n.CRI(t)
	if _, err := cri.Pull(ref, ""); err == nil {
		t.Error("a pod without a secret got a gated model")
	}
	mustPull(t, n, "ballast", ref, "--user", "anybody:hf_tenant")
	want := map[string]node.FileState{}
	for name, f := range files {
		want[name] = state(converttest.File{Path: name, Data: f.Data, Mode: 0o644})
	}
	wantFiles(t, n, ref, want)
}

// TestPullHub pulls a repository of the Hub of Hugging Face by its ordinary name, one of its
// quantizations, and a private one with a pull secret.
func TestPullHub(t *testing.T) {
	hub := converttest.NewHub(t)
	host := strings.TrimPrefix(hub.URL, "http://")
	files := map[string]converttest.HubFile{
		"README.md": {Data: []byte("read me")}, "sub/config.json": {Data: []byte("{}")},
		"m-Q4_K_M.gguf": {Data: weights(120, 9<<20), LFS: true}, "m-Q8_0.gguf": {Data: weights(121, 1<<20), LFS: true},
	}
	hub.Push("org/model", "main", files)
	hub.Push("org/private", "main", files)
	hub.Protect("org/private", "hf_secret")
	n := node.StartNode(t, node.Options{
		Wrap:   []string{"env", "HF_ENDPOINT=" + hub.URL, "HF_TOKEN="},
		Config: fmt.Sprintf("[upstream]\nallow_hosts = [%q]\n", strings.TrimPrefix(hub.CDN.URL, "http://")),
	})
	n.Upstream(t, "hf.co", host)
	want := map[string]node.FileState{}
	for name, f := range files {
		want[name] = state(converttest.File{Path: name, Data: f.Data, Mode: 0o644})
	}
	mustPull(t, n, "ballast", "hf.co/org/model:main")
	wantFiles(t, n, "hf.co/org/model:main", want)
	mustPull(t, n, "ballast", "hf.co/org/private:main", "--user", "anybody:hf_secret")
	wantError(t, n.Pull("ballast", "hf.co/org/private:Q8_0"), "pull access denied", "no credentials for hf.co/")
	delete(want, "m-Q8_0.gguf")
	mustPull(t, n, "ballast", "hf.co/org/model:Q4_K_M")
	wantFiles(t, n, "hf.co/org/model:Q4_K_M", want)
	if l := hub.Leaked(); len(l) > 0 {
		t.Errorf("the token went to another host: %q", l)
	}
}

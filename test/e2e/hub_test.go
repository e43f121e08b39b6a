package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

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
	wantError(t, n.Pull("ballast", "hf.co/org/private:Q8_0"), "no basic auth credentials")
	delete(want, "m-Q8_0.gguf")
	mustPull(t, n, "ballast", "hf.co/org/model:Q4_K_M")
	wantFiles(t, n, "hf.co/org/model:Q4_K_M", want)
	if l := hub.Leaked(); len(l) > 0 {
		t.Errorf("the token went to another host: %q", l)
	}
}

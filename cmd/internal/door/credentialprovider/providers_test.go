package credentialprovider

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
)

// config lists a plugin as the files of the kubelet do.
const config = `# of the kubelet
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: plugin
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages:
  - "*.dkr.ecr.*.example"
  - reg.example/team
  defaultCacheDuration: "12h0m0s"
  args: [get-credentials]
  env:
  - name: PROFILE
    value: a b
- {name: other, apiVersion: credentialprovider.kubelet.k8s.io/v1, matchImages: [other.example], tokenAttributes: {requireServiceAccount: true}}
`

// providers returns plugins of a configuration, of which one is a shell script. It writes its requests to a file.
func providers(t *testing.T, config, script string) (p *Providers, requests func() []string) {
	t.Helper()
	dir := t.TempDir()
	log, file := filepath.Join(dir, "log"), filepath.Join(dir, "config.yaml")
	script = "#!/bin/sh\n{ cat; echo \" $1 $PROFILE\"; } >>" + log + "\n" + script
	if err := errors.Join(os.WriteFile(file, []byte(config), 0o600), os.WriteFile(filepath.Join(dir, "plugin"), []byte(script), 0o755), os.WriteFile(log, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	return New(file, dir), func() []string {
		p, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(p)), "\n")
	}
}

// answering is a script that writes a response.
func answering(keyType, more string) string {
	return fmt.Sprintf(`echo '{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse","cacheKeyType":%q,%s
		"auth":{"reg.example/team/a":{"username":"a","password":"pa"},"reg.example":{"username":"r","password":"pr"},"*.dkr.ecr.*.example":{"username":"AWS","password":"pe"}}}'`, keyType, more)
}

// TestProtocol runs a plugin as the kubelet does, and uses what it says for what it says it for.
func TestProtocol(t *testing.T) {
	p, requests := providers(t, config, answering("Image", ""))
	for _, tt := range []struct{ host, repository, user string }{
		{"reg.example", "team/a", "a"}, {"REG.example:443", "team/b", "r"}, {"1.dkr.ecr.eu.example", "m", "AWS"}, {"reg.example", "other/m", ""}, {"other.example", "m", ""},
	} {
		got, err := p.Credentials(tt.host, tt.repository)
		if err != nil || got.Username != tt.user || (tt.user != "") != (got.Secret != "") {
			t.Errorf("%s/%s: user %q, %v", tt.host, tt.repository, got.Username, err)
		}
	}
	want := `{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderRequest","image":"reg.example/team/a"} get-credentials a b`
	if got := requests(); len(got) != 3 || got[0] != want {
		t.Errorf("requests %q", got)
	}
}

// TestCache asks again when an answer is not for the repository, or its time is over.
func TestCache(t *testing.T) {
	for _, tt := range []struct {
		keyType, more string
		want          int // calls for two repositories of one registry and one of another, each twice
	}{
		{"Image", "", 3}, {"Registry", "", 2}, {"Global", "", 1},
		{"Image", `"cacheDuration":"1h",`, 3}, {"Global", `"cacheDuration":"0s",`, 6}, {"Global", `"cacheDuration":"-1h",`, 6},
	} {
		p, requests := providers(t, config, answering(tt.keyType, tt.more))
		for range 2 {
			for _, name := range []string{"reg.example team/a", "reg.example team/b", "1.dkr.ecr.eu.example m"} {
				host, repository, _ := strings.Cut(name, " ")
				if c, err := p.Credentials(host, repository); err != nil || c == (remote.Credentials{}) {
					t.Fatalf("%s: %v", name, err)
				}
			}
		}
		if got := len(requests()); got != tt.want {
			t.Errorf("%s %s: %d calls, want %d", tt.keyType, tt.more, got, tt.want)
		}
	}
}

// TestCacheOrder: of several answers that may be used, the one for the smallest scope is, as in the kubelet.
func TestCacheOrder(t *testing.T) {
	p, _ := providers(t, config, "exit 1")
	for _, kind := range []string{"Image reg.example/team/a", "Registry reg.example", "Global "} {
		p.cached["plugin "+kind] = answer{map[string]login{"reg.example": {Username: kind}}, time.Now().Add(time.Hour)}
	}
	for _, want := range []string{"Image reg.example/team/a", "Registry reg.example", "Global "} {
		for range 20 {
			if c, err := p.Credentials("reg.example", "team/a"); err != nil || c.Username != want {
				t.Fatalf("got %q, %v, want %q", c.Username, err, want)
			}
		}
		delete(p.cached, "plugin "+want)
	}
}

// TestHostile: whatever a plugin does, the caller gets an error without secrets, in time and without all of its output.
func TestHostile(t *testing.T) {
	for name, tt := range map[string]struct {
		config, script, want string
		is                   func(error) bool
	}{
		"endless":         {config, "yes hunter2", "more than 65536 bytes", errdefs.IsInvalidArgument},
		"no JSON":         {config, "echo hunter2", "no CredentialProviderResponse", errdefs.IsInvalidArgument},
		"another kind":    {config, "echo '{}'", "no CredentialProviderResponse", errdefs.IsInvalidArgument},
		"another version": {strings.ReplaceAll(config, "k8s.io/v1\n  match", "k8s.io/v2\n  match"), answering("Image", ""), "no CredentialProviderResponse", errdefs.IsInvalidArgument},
		"another key":     {config, answering("Pod", ""), `cacheKeyType "Pod"`, errdefs.IsInvalidArgument},
		"another time":    {config, answering("Image", `"cacheDuration":"soon",`), `cacheDuration "soon"`, errdefs.IsInvalidArgument},
		"it fails":        {config, "echo no role >&2; exit 3", `exit status 3: "no role\n"`, func(error) bool { return true }},
		"long errors":     {config, "yes no role | head -c 100000 >&2; exit 3", "exit status 3", func(err error) bool { return len(err.Error()) < 4<<10 }},
		"it hangs":        {config, "while [ -e \"$0\" ]; do sleep 0.1; done & wait", "no answer within 2s", errdefs.IsUnavailable},
		"a path":          {strings.ReplaceAll(config, "name: plugin", "name: ../plugin"), "", "plain name", errdefs.IsInvalidArgument},
		"not there":       {strings.ReplaceAll(config, "name: plugin", "name: none"), "", "none", func(error) bool { return true }},
		"no list":         {"providers: hunter2", "", "no list of plugins", errdefs.IsInvalidArgument},
	} {
		p, _ := providers(t, tt.config, tt.script)
		if p.runTime = time.Minute; name == "it hangs" {
			p.runTime = 2 * time.Second
		}
		start := time.Now()
		_, err := p.Credentials("reg.example", "team/a")
		if err == nil || !strings.Contains(err.Error(), tt.want) || !tt.is(err) || strings.Contains(err.Error(), "hunter2") || time.Since(start) > 50*time.Second {
			t.Errorf("%s: %v, after %s", name, err, time.Since(start))
		}
	}
	if _, err := New("/none/config.yaml", "/none").Credentials("reg.example", "m"); err == nil {
		t.Error("a file that is not there")
	}
}

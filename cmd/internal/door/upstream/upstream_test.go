package upstream

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/convert/hostname"
	"github.com/ballast-dev/ballast/convert/remote"
)

// TestSpellings: whichever way a host is written, in the configuration and in a reference, it is the same host, and no
// other, for all that the configuration says of hosts.
func TestSpellings(t *testing.T) {
	hosts := [][]string{ // the first is the normal one
		{"registry.example", "Registry.Example", "registry.example:443", "REGISTRY.example.:0443", "registry.example."},
		{"registry.example:80", "registry.example:080"},
		{"registry.example:5000", "registry.example:05000", "Registry.Example.:5000"},
		{"registry.example:5001"},
		{"docker.io", "docker.io:443", "index.docker.io", "Registry-1.Docker.IO:443", "registry-1.docker.io."},
		{"hf.co", "huggingface.co", "huggingface.co:0443"},
		{"registry:443", "Registry:0443", "registry."},
		{"registry.ollama.ai", "ollama.com:443"},
		{"[::1]:5000", "[0:0:0:0:0:0:0:1]:5000", "[::0001]:05000"},
		{"[2001:db8::1]", "[2001:DB8:0::1]:443"},
		{"127.0.0.1:5000", "[::ffff:127.0.0.1]:5000", "[::FFFF:7F00:1]:05000"},
		{"localhost:5000", "LocalHost:05000"},
	}
	for i, of := range hosts {
		for _, written := range of {
			uses := users(t, written)
			for j, named := range hosts {
				for _, spelling := range named {
					ref, err := remote.NewRef(spelling, "team/m", "v1")
					if err != nil {
						t.Fatalf("%s: %v", spelling, err)
					}
					if want := named[0] + "/team/m"; ref.Name() != want {
						t.Errorf("%s: name %s, want %s", spelling, ref.Name(), want)
					}
					for use, has := range uses {
						if got := has(ref); got != (i == j) {
							t.Errorf("%s of %s is for %s: %t", use, written, spelling, got)
						}
					}
				}
			}
		}
	}
}

// TestProviders: plugins are asked for what the docker config has no credentials for.
func TestProviders(t *testing.T) {
	dir := t.TempDir()
	c := config.Default()
	c.Upstream.DockerConfig, c.Upstream.ProviderFile, c.Upstream.ProviderDir = filepath.Join(dir, "config.json"), filepath.Join(dir, "plugins.json"), dir
	for name, content := range map[string]string{
		"config.json":  `{"auths":{"r.example/team":{"username":"file","password":"p"}}}`,
		"plugins.json": `{"providers":[{"name":"plugin","apiVersion":"v1","matchImages":["r.example"]}]}`,
		"plugin":       "#!/bin/sh\necho '{\"apiVersion\":\"v1\",\"kind\":\"CredentialProviderResponse\",\"cacheKeyType\":\"Global\",\"auth\":{\"r.example\":{\"username\":\"plugin\"}}}'\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	o := Options(c, "", Providers(c), slog.New(slog.DiscardHandler))
	for name, want := range map[string]string{"r.example team/m": "file", "r.example other/m": "plugin", "s.example m": ""} {
		host, repository, _ := strings.Cut(name, " ")
		if creds, err := o.Credentials(host, repository); err != nil || creds.Username != want {
			t.Errorf("%s: user %q, %v", name, creds.Username, err)
		}
	}
}

// users returns all that a configuration can say of a host, and whether it is said of that of a reference.
func users(t *testing.T, host string) map[string]func(remote.Ref) bool {
	c := config.Default()
	c.Upstream.Offline, c.Upstream.MirrorOnly = []string{host}, []string{host}
	c.Upstream.Share, c.Upstream.OllamaHosts, c.Upstream.Artifacts = []string{host}, []string{host}, []string{host + "/team/*"}
	c.Mirror = []config.Mirror{{Registries: []string{host}}}
	c.Carton = []config.Carton{{Registry: host, URL: "https://x.example/{repository}/{tag}"}}
	c.Lazy.Mode, c.Lazy.Rule = config.ModeAuto, []config.LazyRule{{Match: host + "/team/*", Mode: config.ModeComplete}}
	c.Verify.Rule = []config.VerifyRule{{Match: host + "/team/*"}, {Match: host}, {Match: host + "/Team/M"}}
	c.Upstream.DockerConfig = filepath.Join(t.TempDir(), "config.json")
	auth := fmt.Sprintf(`{"auths":{%q:{"auth":"YTpi"}}}`, hostname.Normal(host))
	if err := os.WriteFile(c.Upstream.DockerConfig, []byte(auth), 0o600); err != nil {
		t.Fatal(err)
	}
	o := Options(c, "", Providers(c), slog.New(slog.DiscardHandler))
	uses := map[string]func(remote.Ref) bool{
		"offline":           func(r remote.Ref) bool { return o.Offline(r.Host) },
		"mirror_only":       func(r remote.Ref) bool { return o.MirrorOnly(r.Host) },
		"mirror":            func(r remote.Ref) bool { return o.Peers[0].For(r.Host) },
		"share_credentials": func(r remote.Ref) bool { return o.Shared(r.Host) },
		"carton":            func(r remote.Ref) bool { return c.Archives()[r.Host] != "" },
		"ollama_hosts":      func(r remote.Ref) bool { return slices.Contains(c.HostsLike("ollama"), r.Host) },
		"artifacts":         func(r remote.Ref) bool { return c.Upstream.MountsTitled(r.Name()) },
		"docker_config": func(r remote.Ref) bool {
			creds, err := o.Credentials(r.Host, r.Repository)
			if err != nil {
				t.Error(err)
			}
			return creds.Username == "a"
		},
	}
	for i, r := range c.Verify.Rule {
		uses[fmt.Sprint("verify.rule ", i)] = func(ref remote.Ref) bool { return r.Matches(ref.Name()) }
	}
	return uses
}

// TestCertsDirs: the directory of several closed registries is looked at once, below each root.
func TestCertsDirs(t *testing.T) {
	got := CertsDirs([]config.HostsFile{{File: "/etc/containerd/certs.d/a.example/hosts.toml"}, {File: "/etc/containerd/certs.d/b.example/hosts.toml"}, {File: "/etc/x/c.example/hosts.toml"}})
	want := []string{
		"/etc/containerd/certs.d", "/etc/docker/certs.d", "/etc/x",
		"/proc/1/root/etc/containerd/certs.d", "/proc/1/root/etc/docker/certs.d", "/proc/1/root/etc/x",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

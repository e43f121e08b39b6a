package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/door/facadetls"
)

// helped runs "ballast docker-credential get" for a server, with a docker config.
func (s *site) helped(t *testing.T, server, dockerConfig string) (code int, stdout, stderr string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"config.json": dockerConfig, "stdin": server} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("DOCKER_CONFIG", dir)
	in, err := os.Open(filepath.Join(dir, "stdin"))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	old := os.Stdin
	os.Stdin = in
	defer func() { os.Stdin = old }()
	return s.ballast(t.Context(), "docker-credential", "get")
}

// facade returns the address of the facade and a client with the key of containerd.
func (s *site) facade(t *testing.T) (address string, c *http.Client) {
	t.Helper()
	cfg, err := config.Load(s.config)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if !facadetls.Made(cfg.Root) { // the daemon makes the keys after its sockets
			continue
		}
		if l, err := net.Dial("tcp", cfg.Facade.Listen); err == nil {
			l.Close()
			break
		}
	}
	key, err := tls.LoadX509KeyPair(facadetls.ClientFile(cfg.Root), facadetls.ClientFile(cfg.Root))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(facadetls.CAFile(cfg.Root))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	c = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{key}}}}
	t.Cleanup(c.CloseIdleConnections)
	return cfg.Facade.Listen, c
}

// TestCredentialHelper: the helper gives the facade what the docker config of its user has for the repository that is
// asked for, also by other helpers, and gives nothing to other servers.
func TestCredentialHelper(t *testing.T) {
	s := newSite(t)
	s.add("team/model", 1, 1<<10)
	s.SetUser("team/model", "alice:s3cret")
	address, client := s.facade(t)
	ask := func(user, password string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/v2/team/model/manifests/v1?ns="+s.Host(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if user != "" {
			req.SetBasicAuth(user, password)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	program := filepath.Join(s.dir, "docker-credential-other")
	script := fmt.Sprintf("#!/bin/sh\nread host\n[ $host = %s ] && echo '{\"Username\": \"alice\", \"Secret\": \"s3cret\"}'\n", s.Host())
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", s.dir+":"+os.Getenv("PATH"))
	stored := fmt.Sprintf(`{"auths": {%q: {"username": "alice", "password": "s3cret"}, "other.example": {"username": "u", "password": "0ther"}}}`, s.Host())
	helped := fmt.Sprintf(`{"credHelpers": {%q: "other", %q: "ballast"}}`, s.Host(), address)
	if code, stdout, stderr := s.helped(t, address, stored); code != exitError || stdout != noCredentials+"\n" || stderr != "" {
		t.Errorf("before a pull: code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	if got := ask("", ""); got != http.StatusUnauthorized {
		t.Fatalf("without credentials: status %d", got)
	}
	for _, dockerConfig := range []string{stored, helped} {
		code, stdout, stderr := s.helped(t, address+"\n", dockerConfig)
		var c struct{ ServerURL, Username, Secret string }
		if err := json.Unmarshal([]byte(stdout), &c); err != nil || code != 0 || stderr != "" || c.ServerURL != address {
			t.Fatalf("%s: code %d, stdout %q, stderr %q: %v", dockerConfig, code, stdout, stderr, err)
		}
		if strings.Contains(stdout, "s3cret") {
			t.Errorf("the credentials are in %s", stdout)
		}
		if got := ask(c.Username, c.Secret); got != http.StatusOK {
			t.Errorf("%s: status %d", dockerConfig, got)
		}
	}
	for name, tt := range map[string]struct{ server, dockerConfig, stderr string }{
		"another server":        {"registry.example", stored, ""},
		"another port":          {"127.0.0.1:1", stored, ""},
		"no entry":              {address, `{"auths": {"other.example": {"username": "u", "password": "p"}}}`, ""},
		"another team":          {address, fmt.Sprintf(`{"auths": {%q: {"username": "u", "password": "p"}}}`, s.Host()+"/other"), ""},
		"an entry out of order": {address, fmt.Sprintf(`{"auths": {%q: {"auth": "x"}}}`, s.Host()), "not valid"},
	} {
		code, stdout, stderr := s.helped(t, tt.server, tt.dockerConfig)
		if code != exitError || stdout != noCredentials+"\n" || !strings.Contains(stderr, tt.stderr) || tt.stderr == "" && stderr != "" {
			t.Errorf("%s: code %d, stdout %q, stderr %q", name, code, stdout, stderr)
		}
	}
	s.stop()
	if code, stdout, stderr := s.helped(t, address, stored); code != exitNetwork || stdout != "" || !strings.Contains(stderr, "ballastd is not running") {
		t.Errorf("without a daemon: code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

package remote

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker-credential-helpers/client"
	"github.com/docker/docker-credential-helpers/credentials"
)

// Credentials are a user name and a secret. If Username is empty, Secret is an identity token (a
// refresh token). Credentials print as "***".
type Credentials struct {
	Username string
	Secret   string
}

// String hides the credentials.
func (Credentials) String() string { return "***" }

// GoString hides the credentials from %#v.
func (Credentials) GoString() string { return "***" }

// LogValue hides the credentials from logs.
func (Credentials) LogValue() slog.Value { return slog.StringValue("***") }

// AnyHost is a value of Options.Shared for commands whose user owns the credentials.
func AnyHost(string) bool { return true }

// dockerHubKey is the name of Docker Hub in a docker config.
// https://github.com/docker/cli/blob/v28.0.0/cli/registry/registry.go
const dockerHubKey = "https://index.docker.io/v1/"

// helperTimeout limits the run time of a credential helper.
const helperTimeout = 30 * time.Second

// identityUser is the user name that a credential helper returns with an identity token.
const identityUser = "<token>"

type dockerConfig struct {
	Auths       map[string]dockerAuth `json:"auths"`
	CredsStore  string                `json:"credsStore"`
	CredHelpers map[string]string     `json:"credHelpers"`
}

type dockerAuth struct {
	Auth          string `json:"auth"`
	Username      string `json:"username"`
	Password      string `json:"password"`
	IdentityToken string `json:"identitytoken"`
}

// DockerCredentials returns a function for Options.Credentials that looks up hosts in the docker
// config file at path: first the credential helper of the host, then the credential store, then the
// auths of the file. It reads the file on each call, so changes take effect. A missing file has no
// credentials.
// https://github.com/docker/cli/blob/v28.0.0/cli/config/configfile/file.go
func DockerCredentials(path string) func(host string) (Credentials, error) {
	return func(host string) (Credentials, error) {
		p, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return Credentials{}, nil
		}
		if err != nil {
			return Credentials{}, fmt.Errorf("docker config: %w", err)
		}
		c, err := parseDockerConfig(p)
		if err != nil {
			return Credentials{}, fmt.Errorf("docker config %s: %w", path, err)
		}
		return c.lookup(host)
	}
}

// parseDockerConfig decodes a docker config. Its errors contain nothing of the file.
func parseDockerConfig(p []byte) (*dockerConfig, error) {
	var c dockerConfig
	if err := json.Unmarshal(p, &c); err != nil {
		return nil, fmt.Errorf("not valid JSON: %w", errdefs.ErrInvalidArgument)
	}
	return &c, nil
}

// lookup returns the credentials for a host, or the zero value if there are none.
func (c *dockerConfig) lookup(host string) (Credentials, error) {
	host = configHost(host)
	helper := c.CredsStore
	for key, h := range c.CredHelpers {
		if configHost(key) == host {
			helper = h
		}
	}
	if helper != "" {
		key := host
		if host == "docker.io" {
			key = dockerHubKey
		}
		cr, err := askHelper(helper, key)
		if err != nil || cr != (Credentials{}) {
			return cr, err
		}
	}
	if a, ok := c.Auths[host]; ok {
		return a.credentials()
	}
	for key, a := range c.Auths {
		if configHost(key) == host {
			return a.credentials()
		}
	}
	return Credentials{}, nil
}

// configHost returns the host of a key of a docker config, which may be a URL.
func configHost(key string) string {
	if _, rest, ok := strings.Cut(key, "://"); ok {
		key = rest
	}
	key, _, _ = strings.Cut(key, "/")
	switch key = strings.ToLower(key); key {
	case "index.docker.io", "registry-1.docker.io":
		return "docker.io"
	}
	return key
}

func (a dockerAuth) credentials() (Credentials, error) {
	if a.IdentityToken != "" {
		return Credentials{Secret: a.IdentityToken}, nil
	}
	if a.Auth == "" {
		return Credentials{Username: a.Username, Secret: a.Password}, nil
	}
	p, err := base64.StdEncoding.DecodeString(a.Auth)
	if err != nil {
		return Credentials{}, fmt.Errorf("docker config: auth is not base64: %w", errdefs.ErrInvalidArgument)
	}
	user, secret, ok := strings.Cut(string(p), ":")
	if !ok {
		return Credentials{}, fmt.Errorf("docker config: auth is not user:password: %w", errdefs.ErrInvalidArgument)
	}
	return Credentials{Username: user, Secret: strings.TrimRight(secret, "\x00")}, nil
}

// askHelper runs a credential helper.
func askHelper(helper, key string) (Credentials, error) {
	if strings.ContainsAny(helper, "/\\") {
		return Credentials{}, fmt.Errorf("docker config: credential helper %q is not a plain name: %w", helper, errdefs.ErrInvalidArgument)
	}
	cr, err := client.Get(newHelper("docker-credential-"+helper), key)
	if credentials.IsErrCredentialsNotFound(err) {
		return Credentials{}, nil
	}
	if err != nil {
		return Credentials{}, fmt.Errorf("credential helper %q: %w", helper, err)
	}
	if cr.Username == identityUser {
		return Credentials{Secret: cr.Secret}, nil
	}
	return Credentials{Username: cr.Username, Secret: cr.Secret}, nil
}

// A helperProgram is a client.Program with a timeout.
type helperProgram struct {
	cmd    *exec.Cmd
	cancel context.CancelFunc
}

func newHelper(name string) client.ProgramFunc {
	return func(args ...string) client.Program {
		ctx, cancel := context.WithTimeout(context.Background(), helperTimeout)
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.WaitDelay = time.Second
		return &helperProgram{cmd, cancel}
	}
}

// Input sets the standard input of the helper.
func (h *helperProgram) Input(in io.Reader) { h.cmd.Stdin = in }

// Output runs the helper and returns its output.
func (h *helperProgram) Output() ([]byte, error) {
	defer h.cancel()
	return h.cmd.Output()
}

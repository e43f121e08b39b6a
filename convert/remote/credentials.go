package remote

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/convert/hostname"
	"github.com/containerd/errdefs"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
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

// helperTimeout limits the run time of a credential helper.
const helperTimeout = 30 * time.Second

// DockerCredentials returns a function for Options.Credentials that looks up repositories in the docker config file at
// path: first with the credential helper of the host, then with the credential store, then in the auths of the file
// (hostname.Entries). It reads the file on each call, so changes take effect. A missing file has no credentials. Errors
// contain nothing of the auths.
// https://github.com/docker/cli/blob/v28.0.0/cli/config/configfile/file.go
func DockerCredentials(path string) func(host, repository string) (Credentials, error) {
	return func(host, repository string) (Credentials, error) {
		host = hostname.Normal(host)
		names := append([]string{host}, hostname.Others(host)...)
		if host == "docker.io" {
			names = append([]string{hostname.DockerHub}, names...)
		}
		c, err := readDockerConfig(path)
		if err != nil {
			return Credentials{}, fmt.Errorf("docker config %s: %w", path, err)
		}
		helper, err := c.helper(names)
		if err != nil {
			return Credentials{}, fmt.Errorf("docker config %s: %w", path, err)
		}
		if helper != "" {
			c, err := ask(credentials.NewNativeStore(helper), names[0], helperTimeout)
			if err != nil {
				return Credentials{}, fmt.Errorf("credential helper for %s: %w", host, err)
			}
			if c != auth.EmptyCredential {
				return credentialsOf(c), nil
			}
		}
		for _, key := range hostname.Entries(maps.Keys(c.Auths), host, repository) {
			found, err := login(c.Auths[key])
			if err != nil { // its text can contain the secret
				return Credentials{}, fmt.Errorf("docker config %s: the credentials for %s are not valid: %w", path, host, errdefs.ErrInvalidArgument)
			}
			if found != (Credentials{}) {
				return found, nil
			}
		}
		return Credentials{}, nil
	}
}

func credentialsOf(c auth.Credential) Credentials {
	if c.RefreshToken != "" {
		return Credentials{Secret: c.RefreshToken}
	}
	return Credentials{Username: c.Username, Secret: c.Password}
}

// A dockerConfig is a docker config file.
type dockerConfig struct {
	Auths       map[string]json.RawMessage `json:"auths"`
	CredsStore  string                     `json:"credsStore"`
	CredHelpers map[string]string          `json:"credHelpers"`
}

func readDockerConfig(path string) (c dockerConfig, err error) {
	p, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	if json.Unmarshal(p, &c) != nil { // its text can contain a part of the file
		return c, fmt.Errorf("not valid JSON: %w", errdefs.ErrInvalidArgument)
	}
	return c, nil
}

// helper returns the credential helper for a host with these names, or an empty string. A helper is a process, so it
// is chosen here and runs once for all names.
func (c dockerConfig) helper(names []string) (string, error) {
	helper := c.CredsStore
	for _, name := range names {
		if h := c.CredHelpers[name]; h != "" {
			helper = h
			break
		}
	}
	if strings.ContainsAny(helper, "/\\") {
		return "", fmt.Errorf("credential helper %q is not a plain name: %w", helper, errdefs.ErrInvalidArgument)
	}
	return helper, nil
}

// login returns the credentials of an entry of a docker config. An error contains them.
func login(entry json.RawMessage) (Credentials, error) {
	var e struct {
		Auth          string `json:"auth"`
		IdentityToken string `json:"identitytoken"`
		Username      string `json:"username"`
		Password      string `json:"password"`
	}
	if err := json.Unmarshal(entry, &e); err != nil {
		return Credentials{}, err
	}
	if e.Auth != "" {
		p, err := base64.StdEncoding.DecodeString(e.Auth)
		user, password, ok := strings.Cut(string(p), ":")
		if err != nil || !ok {
			return Credentials{}, fmt.Errorf("auth %q: %w", e.Auth, errdefs.ErrInvalidArgument)
		}
		e.Username, e.Password = user, strings.TrimRight(password, "\x00") // as docker does
	}
	if e.IdentityToken != "" {
		return Credentials{Secret: e.IdentityToken}, nil
	}
	return Credentials{Username: e.Username, Secret: e.Password}, nil
}

// ask looks up credentials. Processes that a helper started can keep its output open after the
// helper was killed, so ask returns without it.
func ask(s credentials.Store, name string, timeout time.Duration) (auth.Credential, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var c auth.Credential
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err = s.Get(ctx, name)
	}()
	select {
	case <-done:
		return c, err
	case <-ctx.Done():
		return auth.EmptyCredential, fmt.Errorf("no answer within %s: %w", timeout, errdefs.ErrUnavailable)
	}
}

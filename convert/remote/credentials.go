package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"

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

// dockerHub is the name of Docker Hub in a docker config.
// https://github.com/docker/cli/blob/v28.0.0/cli/registry/registry.go
const dockerHub = "https://index.docker.io/v1/"

// helperTimeout limits the run time of a credential helper.
const helperTimeout = 30 * time.Second

// DockerCredentials returns a function for Options.Credentials that looks up hosts in the docker
// config file at path: first the credential helper of the host, then the credential store, then the
// auths of the file. It reads the file on each call, so changes take effect. A missing file has no
// credentials. Errors contain nothing of the auths.
// https://github.com/docker/cli/blob/v28.0.0/cli/config/configfile/file.go
func DockerCredentials(path string) func(host string) (Credentials, error) {
	return func(host string) (Credentials, error) {
		host = NormalHost(host)
		names := append([]string{host}, otherNames(host)...)
		if host == "docker.io" {
			names = append([]string{dockerHub}, names...)
		}
		helper, err := helperOf(path, names)
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
		file, err := credentials.NewFileStore(path)
		if err != nil {
			return Credentials{}, fmt.Errorf("docker config: %w", err)
		}
		for _, name := range names {
			c, err := file.Get(context.Background(), name)
			if err != nil { // its text can contain the secret
				return Credentials{}, fmt.Errorf("docker config %s: the credentials for %s are not valid: %w", path, host, errdefs.ErrInvalidArgument)
			}
			if c != auth.EmptyCredential {
				return credentialsOf(c), nil
			}
		}
		return Credentials{}, nil
	}
}

func credentialsOf(c auth.Credential) Credentials {
	if c.RefreshToken != "" {
		return Credentials{Secret: c.RefreshToken}
	}
	return Credentials{Username: c.Username, Secret: strings.TrimRight(c.Password, "\x00")} // as docker does
}

// helperOf returns the credential helper for a host with these names, or an empty string. A helper is
// a process, so it is chosen here and runs once for all names.
func helperOf(path string, names []string) (string, error) {
	p, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var c struct {
		CredsStore  string            `json:"credsStore"`
		CredHelpers map[string]string `json:"credHelpers"`
	}
	if err := json.Unmarshal(p, &c); err != nil { // its text can contain a part of the file
		return "", fmt.Errorf("not valid JSON: %w", errdefs.ErrInvalidArgument)
	}
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

package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
)

// loginOf returns the user and the password of a Docker configuration for the registry of a reference.
// https://kubernetes.io/docs/concepts/configuration/secret/#docker-config-secrets
func loginOf(config []byte, ref string) (user, password string, err error) {
	var c struct {
		Auths map[string]struct{ Username, Password, Auth string }
	}
	if len(config) == 0 {
		return "", "", fmt.Errorf("it has no .dockerconfigjson: %w", errdefs.ErrInvalidArgument)
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return "", "", fmt.Errorf("its .dockerconfigjson cannot be read: %w", errdefs.ErrInvalidArgument) // without its content
	}
	host, _, _ := strings.Cut(ref, "/")
	for server, a := range c.Auths {
		server = strings.TrimPrefix(strings.TrimPrefix(server, "https://"), "http://")
		if server, _, _ = strings.Cut(server, "/"); server != host && (server != "index.docker.io" || host != "docker.io") {
			continue
		}
		if a.Auth == "" {
			return a.Username, a.Password, nil
		}
		p, err := base64.StdEncoding.DecodeString(a.Auth)
		user, password, ok := strings.Cut(string(p), ":")
		if err != nil || !ok {
			return "", "", fmt.Errorf("its entry for %s has no user and password: %w", host, errdefs.ErrInvalidArgument)
		}
		return user, password, nil
	}
	return "", "", fmt.Errorf("it has no entry for %s: %w", host, errdefs.ErrNotFound)
}

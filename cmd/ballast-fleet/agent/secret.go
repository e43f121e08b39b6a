package agent

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/containerd/errdefs"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// credentials reads a pull secret. A model whose registry has no entry in it is public, as to a kubelet.
func (a *Agent) credentials(ctx context.Context, secret string, req *wire.FleetPullRequest) error {
	if secret == "" {
		return nil
	}
	var s core.Secret
	if err := a.direct.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: secret}, &s); err != nil {
		if apierrors.IsForbidden(err) {
			return fmt.Errorf("pull secret %s cannot be read; add it to fleet.pullSecrets of the chart: %w", secret, errdefs.ErrPermissionDenied)
		}
		return fmt.Errorf("pull secret %s in namespace %s: %w", secret, a.Namespace, err)
	}
	var err error
	req.Username, req.Password, err = loginOf(s.Data[core.DockerConfigJsonKey], req.Ref)
	if err != nil {
		return fmt.Errorf("pull secret %s: %w", secret, err)
	}
	return nil
}

// loginOf returns the user and the password of a Docker configuration for a reference: those of the entry with its host
// and the longest path that is above it, as for a kubelet.
// Without such an entry both are empty.
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
	best, path := "", "" // the entry, and its path
	for _, server := range slices.Sorted(maps.Keys(c.Auths)) {
		if p := serverPath(server); inside(ref, p) && len(p) > len(path) {
			best, path = server, p
		}
	}
	if path == "" {
		return "", "", nil
	}
	a := c.Auths[best]
	if a.Auth == "" {
		return a.Username, a.Password, nil
	}
	p, err := base64.StdEncoding.DecodeString(a.Auth)
	user, password, ok := strings.Cut(string(p), ":")
	if err != nil || !ok {
		return "", "", fmt.Errorf("its entry for %s has no user and password: %w", path, errdefs.ErrInvalidArgument)
	}
	return user, password, nil
}

// serverPath returns the host and the path of an entry of a Docker configuration, without what is only the version of
// the interface.
func serverPath(server string) string {
	server = strings.TrimPrefix(strings.TrimPrefix(server, "https://"), "http://")
	host, path, _ := strings.Cut(strings.TrimRight(server, "/"), "/")
	if host == "index.docker.io" {
		host = "docker.io"
	}
	if path == "" || path == "v1" || path == "v2" {
		return host
	}
	return host + "/" + path
}

// inside reports whether the repository of a reference is at a path or below it.
func inside(ref, path string) bool {
	rest, ok := strings.CutPrefix(ref, path)
	if !ok {
		return false
	}
	host := !strings.Contains(path, "/")
	return strings.HasPrefix(rest, "/") || !host && (strings.HasPrefix(rest, ":") || strings.HasPrefix(rest, "@"))
}

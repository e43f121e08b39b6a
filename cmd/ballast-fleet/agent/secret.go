package agent

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/hostname"
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
// and the longest path that is above it, as for a kubelet (hostname.Entries).
// Without such an entry both are empty.
// https://kubernetes.io/docs/concepts/configuration/secret/#docker-config-secrets
func loginOf(config []byte, ref string) (user, password string, err error) {
	type login struct{ Username, Password, Auth string }
	var c struct{ Auths map[string]login }
	if len(config) == 0 {
		return "", "", fmt.Errorf("it has no .dockerconfigjson: %w", errdefs.ErrInvalidArgument)
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return "", "", fmt.Errorf("its .dockerconfigjson cannot be read: %w", errdefs.ErrInvalidArgument) // without its content
	}
	name, _, _ := strings.Cut(ref, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name = name[:i]
	}
	host, repository, _ := strings.Cut(name, "/")
	for _, key := range hostname.Entries(maps.Keys(c.Auths), hostname.Normal(host), repository) {
		a := c.Auths[key]
		if a == (login{}) {
			continue
		}
		if a.Auth == "" {
			return a.Username, a.Password, nil
		}
		p, err := base64.StdEncoding.DecodeString(a.Auth)
		user, password, ok := strings.Cut(string(p), ":")
		if err != nil || !ok {
			return "", "", fmt.Errorf("its entry for %s has no user and password: %w", key, errdefs.ErrInvalidArgument)
		}
		return user, password, nil
	}
	return "", "", nil
}

package agent

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/plan"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/hostname"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// fetch has the daemon fetch a model.
func (a *Agent) fetch(ctx context.Context, ref string, w plan.Wish, event func(wire.Event)) (im wire.Record, err error) {
	q := wire.FleetPullRequest{Ref: ref, Handler: a.Handler, Rate: w.Rate, Set: w.Set}
	if plan.Digest(ref) == "" {
		q.Version = digest.Digest(w.Digest)
	}
	return im, a.withLogins(ctx, ref, w, func(l login) (err error) {
		q.Username, q.Password = l.username, l.password
		im, err = a.daemon.FleetPull(ctx, q, event)
		return err
	})
}

// withLogins calls f with each login that the sets of a model have for it, until the registry gives it. A secret that
// cannot be read, or that the registry refuses, does not prevent the others.
func (a *Agent) withLogins(ctx context.Context, ref string, w plan.Wish, f func(login) error) error {
	logins, first := a.logins(ctx, ref, w.Secrets)
	if w.Public || len(logins) == 0 && first == nil {
		logins = append(logins, login{})
	}
	for _, l := range logins {
		err := f(l)
		if err == nil {
			return nil
		}
		refused := errdefs.IsUnauthorized(err) || errdefs.IsPermissionDenied(err)
		switch {
		case refused && l.secret != "":
			err = fmt.Errorf("pull secret %s: %w", l.secret, err)
		case refused && len(w.Secrets) > 0:
			err = fmt.Errorf("no entry for it in the pull secrets %s: %w", strings.Join(w.Secrets, ", "), err)
		case !refused && !errdefs.IsNotFound(err): // as registries answer that hide what a login may not see
			return err
		}
		first = cmp.Or(first, err)
	}
	return first
}

// A login is what a pull secret has for a model. Without a secret there is none.
type login struct{ secret, username, password string }

// logins returns what pull secrets have for a model, and the first error of those that cannot be read. A model that has
// no entry in them is public, as to a kubelet.
func (a *Agent) logins(ctx context.Context, ref string, secrets []string) (all []login, first error) {
	for _, name := range secrets {
		var s core.Secret
		err := a.direct.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: name}, &s)
		if apierrors.IsForbidden(err) {
			err = fmt.Errorf("it cannot be read; add it to fleet.pullSecrets of the chart: %w", errdefs.ErrPermissionDenied)
		}
		l := login{secret: name}
		if err == nil {
			l.username, l.password, err = loginOf(s.Data[core.DockerConfigJsonKey], ref)
		}
		switch {
		case err != nil:
			first = cmp.Or(first, fmt.Errorf("pull secret %s in namespace %s: %w", name, a.Namespace, err))
		case l.username != "" || l.password != "":
			all = append(all, l)
		}
	}
	return all, first
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

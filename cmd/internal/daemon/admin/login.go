package admin

import (
	"context"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/remote"
)

// login returns a password for the facade that stands for credentials.
func (h *Handler) login(_ context.Context, r wire.Login) (wire.Password, error) {
	of := map[string]remote.Credentials{}
	for _, c := range r.Of {
		of[c.Name] = remote.Credentials{Username: c.Username, Secret: c.Secret}
	}
	return wire.Password{Password: h.Facade.Login(of)}, nil
}

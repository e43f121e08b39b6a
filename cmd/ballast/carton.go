package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/cmd/internal/upstream"
	"github.com/ballast-dev/ballast/convert/carton"
	"github.com/ballast-dev/ballast/convert/remote"
)

// cartonDetail converts the carton at a URL in this process. From a server without ranges all of
// it is downloaded to a temporary file.
func (a *app) cartonDetail(ctx context.Context, cfg *config.Config, client *remote.Client, ref remote.Ref, address string) (_ admin.Detail, err error) {
	o := upstream.CartonOptions(cfg, client, a.log())
	o.TempDir = os.TempDir()
	src, err := carton.OpenURL(ctx, address, o)
	if err != nil {
		return admin.Detail{}, mapped(ref, address, err)
	}
	c, err := carton.Open(ctx, src, o)
	if err != nil {
		return admin.Detail{}, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	model, err := c.Model(ctx)
	if err != nil {
		return admin.Detail{}, err
	}
	return describe(ref, model)
}

// mapped adds to an error of the carton at a URL the reference that the configuration maps to it. The
// query is left out: it can be a secret.
func mapped(ref remote.Ref, address string, err error) error {
	if err == nil || ref.URL != "" {
		return err
	}
	address, _, _ = strings.Cut(address, "?")
	return fmt.Errorf("%s, which is %s here: %w", ref, address, err)
}

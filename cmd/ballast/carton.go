package main

import (
	"context"
	"errors"
	"os"

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
		return admin.Detail{}, err
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

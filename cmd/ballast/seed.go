package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/translate"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/door/upstream"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
)

func (a *app) seedCommand() *cobra.Command {
	var list string
	c := &cobra.Command{
		Use:   "seed DIR [REF...]",
		Short: "download models into a directory that is the root of ballastd in a node image",
		Long: `Download models into a directory that becomes the root of ballastd on other machines, for example /var/lib/ballast
of a node image. ballastd need not run. The directory has complete, verified and pinned models, and nothing of this
machine: no keys and no credentials. A ballastd with this root has the models when it starts, without reading them
again, and pods can pull them while the registry does not answer.

DIR must be empty, or made by an earlier "ballast seed", to which the models are added. Models that only
credentials can read stay private: pods need a pull secret, and the registry must answer.`,
		Example: "  ballast seed ./image/var/lib/ballast ghcr.io/team/model:v1\n  ballast seed ./ballast --file models.txt && tar --xattrs -C ./ballast -cf ballast.tar .",
		Args:    numberOfArgs(1, 0, "a directory and models expected"),
	}
	listFlag(c, &list)
	out := outputFlag(c)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		refs, err := references(cmd, args[1:], list, parseRemote)
		if err != nil {
			return err
		}
		return a.seed(cmd.Context(), args[0], refs, *out)
	}
	return c
}

// seed adds models to the root of a node image.
func (a *app) seed(ctx context.Context, dir string, refs []remote.Ref, out output) (err error) {
	if os.Geteuid() != 0 {
		return fmt.Errorf("the files of a seed belong to root; run it as root: %w", errdefs.ErrPermissionDenied)
	}
	cfg, err := a.load()
	if err != nil {
		return err
	}
	if cfg.Root, err = filepath.Abs(dir); err != nil {
		return err
	}
	if err := checkSeed(dir); err != nil {
		return err
	}
	client, err := remote.New(upstream.Options(cfg, wire.ThisVersion().Agent(), upstream.Providers(cfg), a.log()))
	if err != nil {
		return err
	}
	defer client.Close()
	h := &registry.Handler{Resolver: upstream.Resolver(cfg, client, a.log()), Log: a.log()}
	if h.Settings.TempDir, err = os.MkdirTemp("", "ballast-seed"); err != nil {
		return err
	}
	defer os.RemoveAll(h.Settings.TempDir) // copies of archives
	rules, err := upstream.Rules(cfg)
	if err != nil {
		return err
	}
	if h.Store, err = store.Open(dir, store.Options{Connections: cfg.Fetch.Connections, Reserve: max(1, int64(cfg.Fetch.Reserve)), Log: a.log()}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close(), h.Store.Close()) }()
	if len(rules) > 0 {
		h.Signatures = &signature.Checker{Rules: rules, Store: h.Store, Log: a.log()}
	}
	return each(a, refs, func(ref remote.Ref) error {
		if err := a.seedModel(ctx, h, ref, out); err != nil {
			return wire.About(ref.String(), err)
		}
		return nil
	})
}

// checkSeed checks that a directory is empty or was made by seed. The root of a node has more.
func checkSeed(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if !store.Owns(e.Name()) {
			return usage("%s has %s, so it is not empty and no earlier seed; use another directory", dir, printable(e.Name()))
		}
	}
	return err
}

// seedModel adds a model to a seed.
func (a *app) seedModel(ctx context.Context, h *registry.Handler, ref remote.Ref, out output) error {
	start := time.Now()
	im, err := h.Convert(a.waiting(ctx), ref)
	if err != nil {
		return err
	}
	p := a.progress(out, ref.String())
	err = h.Store.Hydrate(ctx, im.Table, store.HydrateOptions{Sources: h.NodeSources(im, ref.Name()), Progress: follow(p)})
	p.end()
	if err != nil {
		return err
	}
	if _, err := h.Admit(ctx, registry.Candidate{Table: im.Table, Names: []string{ref.Name()}, Complete: true, AsNode: true}); err != nil {
		return err
	}
	pin := modelname.Pin(modelname.Label(im, ref))
	if err := h.Store.AddRef(pin, im.Table, time.Time{}, ref.Name()); err != nil {
		return err
	}
	for _, named := range h.Store.Catalog.ImagesByRef(ref.Recorded()) { // an index, or the model
		if slices.Contains(named.PrivateNames, ref.Name()) {
			a.note("%s needs credentials, so pods can pull it only while its registry answers", ref)
			continue
		}
		named.Imported = []string{ref.Recorded()}
		if err := h.Store.PutImage(named); err != nil {
			return err
		}
	}
	line := im.Manifest.String()
	switch {
	case out == outJSON:
		return a.printJSON(wire.Imported{Ref: ref.String(), Image: translate.Image(im)})
	case !a.quiet:
		line = fmt.Sprintf("%s  %s  %s  %s", ref, shortDigest(line), size(im.Size), took(time.Since(start)))
	}
	_, err = fmt.Fprintln(a.stdout, line)
	return err
}

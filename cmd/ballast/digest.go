package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"
)

func (a *app) digestCommand() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "digest REF",
		Short: "print the digest that nodes see for a reference",
		Long: `Print the digest that nodes see for a reference: for a model that of the converted image, for anything else
that of the registry. It works without ballastd and downloads no weights. With --all, also print the digest of
the origin, whether its registry has the converted image ("ballast convert REF --referrer"), and where each of
the two digests works.

REF is as a node pulls it, also a name that the configuration maps to a carton, a tag with the name
of an Ollama runner at its end, or carton+https://HOST/FILE.carton; or any other SRC of "ballast convert",
of which this is the digest of what --no-chunks makes.`,
		Args: modelArgs(1, 1),
	}
	out := outputFlag(c)
	c.Flags().BoolVarP(&all, "all", "a", false, "print all digests of the model, and where they work")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		res, err := a.digest(cmd.Context(), args[0], all)
		if err != nil {
			return err
		}
		if *out == outJSON {
			return a.printJSON(res)
		}
		if all && !a.quiet {
			return a.printDigests(res)
		}
		_, err = fmt.Fprintln(a.stdout, res.Digest)
		return err
	}
	return c
}

// A seen is the result of resolving a reference on a node.
type seen struct {
	Ref    string           `json:"ref"`
	Digest digest.Digest    `json:"digest"`
	Origin digest.Digest    `json:"origin"` // in the registry; equal to Digest if nothing is converted
	Format mediatype.Format `json:"format"`

	// Set with --all for a model in a registry.
	Registry *inRegistry        `json:"registry,omitempty"`
	Mounts   registry.Mountable `json:"mounts,omitempty"` // how containerd mounts the origin
}

// An inRegistry is what the registry has of a converted image.
type inRegistry struct {
	Converted bool          `json:"converted"`
	Referrer  digest.Digest `json:"referrer,omitempty"` // the index that refers to the origin
}

// digest converts a model in this process.
func (a *app) digest(ctx context.Context, name string, all bool) (_ *seen, err error) {
	r, err := a.resolver(name)
	if err != nil {
		return nil, err
	}
	defer r.Upstream.Close()
	src, err := r.Open(a.waiting(ctx), name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	res := &seen{Ref: src.Name}
	o := src.Origin
	if o != nil {
		res.Digest, res.Origin, res.Format = o.Served.Digest, o.Served.Digest, o.Format
	}
	if o != nil && o.Format == mediatype.FormatIndex && o.Repo != nil {
		index, err := r.Index(ctx, o)
		if err == nil {
			res.Digest = index.Digest
		}
		if errors.Is(err, convert.ErrNotModel) {
			err = nil
		}
		return res, err
	}
	if src.Model == nil {
		return res, nil
	}
	im, err := src.Image()
	if err != nil {
		return nil, err
	}
	res.Digest = im.Digest
	if o == nil {
		res.Origin, res.Format = src.Model.Table.Origin.Digest, mediatype.Format(src.Model.Table.Origin.Format)
	}
	if all && o != nil && o.Repo != nil && !o.Ahead() {
		err = res.look(ctx, o.Repo, src.Model)
	}
	return res, err
}

// look finds what the registry has, and where the digests work.
func (s *seen) look(ctx context.Context, repo *remote.Repository, model *convert.Model) error {
	s.Registry = &inRegistry{}
	_, err := repo.Manifest(ctx, s.Digest.String())
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	s.Registry.Converted = err == nil
	list, err := repo.Referrers(ctx, s.Origin, maxReferrers, mediatype.Converted)
	if err != nil {
		return err
	}
	for _, d := range list {
		m, err := repo.Manifest(ctx, d.Digest.String())
		if err != nil {
			return err
		}
		index, err := convert.ParseManifest(m.Bytes)
		if err == nil && slices.ContainsFunc(index.Manifests, func(e convert.Descriptor) bool { return e.Digest == s.Digest }) {
			s.Registry.Referrer = d.Digest
		}
	}
	if formats.All().Get(string(s.Format)).Variants != nil {
		return nil
	}
	s.Mounts, err = registry.MountableOf(model.Documents.Manifest, []byte(cmp.Or(string(model.Documents.Config), "{}")))
	return err
}

// maxReferrers limits the referrers of an origin that are read.
const maxReferrers = 16

// printDigests prints the digests of a reference, and where they work.
func (a *app) printDigests(s *seen) error {
	name, _, _ := strings.Cut(s.Ref, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name = name[:i]
	}
	if s.Digest == s.Origin {
		_, err := fmt.Fprintf(a.stdout, "%s@%s  nothing is converted\n", name, s.Digest)
		return err
	}
	pods := map[registry.Mountable]string{
		registry.Bare: "pods only; private: after a pull with credentials", registry.Layered: "containerd unpacks it itself",
	}
	where := "nodes that have seen the tag or can find it; not in the registry"
	if r := s.Registry; r != nil && r.Converted {
		where = "everywhere; the registry has it"
		if r.Referrer != "" {
			where += ", as referrer " + r.Referrer.String()
		}
	}
	return a.table([][]string{
		{"DIGEST", "REFERENCE", "WORKS"},
		{"converted", name + "@" + s.Digest.String(), where},
		{"origin", name + "@" + s.Origin.String(), cmp.Or(pods[s.Mounts], "refused")},
	})
}

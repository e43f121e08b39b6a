package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/cmd/internal/upstream"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"
)

func (a *app) digestCommand() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "digest REF",
		Short: "print the digest that nodes will see for a reference",
		Long: `Print the digest that nodes will see for a reference: that of the converted image for a
model, that of the registry for anything else. It works without ballastd and downloads no weights.
With --all, the digest of the origin as well, whether its registry has the converted image
("ballast convert REF --referrer"), and where each of the two digests works.

REF is as a node pulls it, also a name that the configuration maps to a carton, a tag with the name
of an Ollama runner at its end, or carton+https://HOST/FILE.carton.`,
		Args: modelArgs(1, 1),
	}
	out := outputFlag(c)
	c.Flags().BoolVar(&all, "all", false, "all digests of the model, and where they work")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		res, err := a.digest(cmd.Context(), args[0], all)
		if err != nil {
			return err
		}
		if *out == outJSON {
			return a.printJSON(res)
		}
		if all {
			return a.printDigests(res)
		}
		_, err = fmt.Fprintln(a.stdout, res.Digest)
		return err
	}
	return c
}

// A seen is what a node sees of a reference.
type seen struct {
	Ref    string           `json:"ref"`
	Digest digest.Digest    `json:"digest"`
	Origin digest.Digest    `json:"origin"` // of the registry; the same if nothing is converted
	Format mediatype.Format `json:"format"`

	// With --all, of a model in a registry.
	Registry *inRegistry        `json:"registry,omitempty"`
	Mounts   registry.Mountable `json:"mounts,omitempty"` // what containerd makes of the origin
}

// An inRegistry says what the registry has of a converted image.
type inRegistry struct {
	Converted bool          `json:"converted"`
	Referrer  digest.Digest `json:"referrer,omitempty"` // the index that refers to the origin
}

// digest converts a reference in this process.
func (a *app) digest(ctx context.Context, name string, all bool) (*seen, error) {
	ref, err := admin.ParseRef(name)
	if err != nil {
		return nil, &usageError{err}
	}
	u, err := a.upstream(name)
	if err != nil {
		return nil, err
	}
	defer u.client.Close()
	if address, ok := registry.CartonURL(upstream.Cartons(u.cfg), ref); ok {
		return u.cartonDigest(ctx, ref, address)
	}
	repo, served, m, runner, err := u.resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	res := &seen{Ref: ref.String(), Digest: served.Digest, Origin: served.Digest}
	if res.Format, err = convert.Detect(m); err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	if res.Format == mediatype.FormatImage && convert.IsTitled(m) && u.cfg.Upstream.MountsTitled(ref.Name()) {
		res.Format = mediatype.FormatTitled
	}
	switch res.Format {
	case mediatype.FormatImage:
		return res, nil
	case mediatype.FormatIndex:
		res.Digest, err = u.indexDigest(ctx, remote.Ref{Host: ref.Host, Repository: ref.Repository, Tag: ref.Tag, Digest: ref.Digest})
		return res, err
	}
	model, err := u.parsers(runner).Parse(ctx, repo.Artifact(served))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	im, err := image.Build(model)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	res.Digest = im.Digest
	if all {
		err = res.look(ctx, repo, model)
	}
	return res, err
}

// look finds out what the registry has, and where the digests work.
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
	if s.Format == mediatype.FormatOllamaList {
		return nil
	}
	s.Mounts, err = registry.MountableOf(model.Documents.Manifest, []byte(cmp.Or(string(model.Documents.Config), "{}")))
	return err
}

// maxReferrers is how many referrers of an origin are looked at.
const maxReferrers = 16

// printDigests writes the digests of a reference, and where they work.
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
		registry.Bare: "public: pods only; private: refused", registry.Layered: "containerd unpacks it itself",
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

// cartonDigest converts the carton at a URL. Its origin is the model hash.
func (u *upstreamClient) cartonDigest(ctx context.Context, ref remote.Ref, address string) (_ *seen, err error) {
	if ref.Digest != "" {
		return nil, usage("%s: a carton at a URL has a tag", ref)
	}
	src, err := u.fromURL(ctx, address)
	if err != nil {
		return nil, mapped(ref, address, err)
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	im, err := image.Build(src.Model)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	return &seen{Ref: ref.String(), Digest: im.Digest, Origin: src.Model.Table.Origin.Digest, Format: mediatype.FormatCarton}, nil
}

// indexDigest asks the facade, in this process and with a store of its own, for an index.
func (u *upstreamClient) indexDigest(ctx context.Context, ref remote.Ref) (d digest.Digest, err error) {
	dir, err := os.MkdirTemp("", "ballast-digest-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s, err := store.Open(dir, store.Options{Log: u.log})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	facade := &registry.Handler{Upstream: u.client, Store: s, Parsers: u.parsers(""), OllamaRunner: u.cfg.Upstream.OllamaRunner, Carton: u.cartons, Log: u.log}
	defer func() { err = errors.Join(err, facade.Close()) }()
	address := &url.URL{Path: "/v2/" + ref.Repository + "/manifests/" + ref.Object(), RawQuery: url.Values{"ns": {ref.Host}}.Encode()}
	w := &answer{header: http.Header{}}
	facade.ServeHTTP(w, (&http.Request{Method: http.MethodGet, URL: address, Header: http.Header{}}).WithContext(ctx))
	if w.status != http.StatusOK {
		return "", fmt.Errorf("%s: a node would get %d: %s: %w", ref, w.status, strings.TrimSpace(w.body.String()), errdefs.ErrFailedPrecondition)
	}
	return verify.ParseDigest(w.header.Get("Docker-Content-Digest"))
}

// An answer is what a handler writes.
type answer struct {
	header http.Header
	status int
	body   strings.Builder
}

// Header returns the header.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader keeps the status.
func (a *answer) WriteHeader(status int) { a.status = status }

// Write keeps what is written.
func (a *answer) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	return a.body.Write(p)
}

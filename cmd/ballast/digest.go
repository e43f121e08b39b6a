package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
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
	c := &cobra.Command{
		Use:   "digest REF",
		Short: "print the digest that nodes will see for a reference",
		Long: `Print the digest that nodes will see for a reference: that of the converted image for a
model, that of the registry for anything else. It works without ballastd and downloads no weights.
REF is as a node pulls it, also a name that the configuration maps to a carton, a tag with the name
of an Ollama runner at its end, or carton+https://HOST/FILE.carton.`,
		Args: cobra.ExactArgs(1),
	}
	out := outputFlag(c)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		res, err := a.digest(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if *out == outJSON {
			return a.printJSON(res)
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
}

// digest converts a reference in this process.
func (a *app) digest(ctx context.Context, name string) (*seen, error) {
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
	return res, nil
}

// cartonDigest converts the carton at a URL. Its origin is the model hash.
func (u *upstreamClient) cartonDigest(ctx context.Context, ref remote.Ref, address string) (_ *seen, err error) {
	if ref.Digest != "" {
		return nil, usage("%s: a carton at a URL has a tag", ref)
	}
	src, err := u.fromURL(ctx, address)
	if err != nil {
		return nil, err
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

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/cmd/internal/upstream"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/carton"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/ollama/localstore"
	"github.com/ballast-dev/ballast/convert/push"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store/transfer"
)

// The schemes of names.
const (
	layoutScheme = "oci:"
	ollamaScheme = "ollama:"
	cartonScheme = "carton+" // before a URL
)

// splitLayout parts DIR:TAG.
func splitLayout(s string) (dir, tag string) {
	if i := strings.LastIndexByte(s, ':'); i > strings.LastIndexByte(s, '/') {
		return s[:i], s[i+1:]
	}
	return s, ""
}

// splitOllama parts [DIR:]MODEL. A directory begins with / or . and can have colons, if the store
// is there; MODEL can have them too.
func splitOllama(s string) (dir, model string) {
	if !strings.HasPrefix(s, "/") && !strings.HasPrefix(s, ".") {
		return "", s
	}
	for i := 0; i < len(s); i++ {
		if s[i] != ':' {
			continue
		}
		if _, err := os.Stat(filepath.Join(s[:i], "blobs")); err == nil {
			return s[:i], s[i+1:]
		}
	}
	dir, model, _ = strings.Cut(s, ":")
	return dir, model
}

// cartonAddress returns the URL in the name of a carton at a URL.
func cartonAddress(name string) (address string, ok bool) {
	address = strings.TrimPrefix(name, cartonScheme)
	return address, address != name || strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://")
}

// An opener makes a source of names that it recognises.
type opener struct {
	is   func(name string) bool
	open func(ctx context.Context, u *upstreamClient, name string) (*push.Source, error)
}

// openers are all kinds of SRC. The first that recognises a name opens it.
func openers() []opener {
	return []opener{
		{isLayout, openLayout},
		{func(s string) bool { return strings.HasPrefix(s, ollamaScheme) }, openOllama},
		{func(s string) bool { _, ok := cartonAddress(s); return ok }, openCartonName},
		{isCartonFile, openCartonFile},
		{isPath, func(ctx context.Context, _ *upstreamClient, name string) (*push.Source, error) {
			return push.OpenFiles(ctx, name)
		}},
		{func(string) bool { return true }, openReference},
	}
}

// source opens SRC.
func (u *upstreamClient) source(ctx context.Context, name string) (*push.Source, error) {
	for _, o := range openers() {
		if !o.is(name) {
			continue
		}
		src, err := o.open(ctx, u, name)
		if err != nil {
			return nil, err
		}
		src.Name = name
		return src, nil
	}
	panic("ballast: internal error: no opener")
}

// isPath reports whether a name is one of a file, and not a reference.
func isPath(s string) bool {
	if filepath.IsAbs(s) || s == "." || s == ".." || strings.HasPrefix(s, "./") || strings.HasPrefix(s, "../") {
		return true
	}
	if _, err := admin.ParseRef(s); err == nil {
		return false
	}
	_, err := os.Lstat(s)
	return err == nil
}

// isCartonFile reports whether a name is one of a carton on the disk: a directory that one was
// unpacked to, or a name that ends so and is not that of a repository.
func isCartonFile(s string) bool {
	if isPath(s) && carton.IsFolder(s) {
		return true
	}
	if !strings.HasSuffix(strings.ToLower(s), ".carton") {
		return false
	}
	if _, err := admin.ParseRef(s); err != nil || isPath(s) {
		return true
	}
	_, err := os.Lstat(s)
	return err == nil
}

func isLayout(s string) bool {
	if strings.HasPrefix(s, "oci://") { // a reference with a scheme
		return false
	}
	return strings.HasPrefix(s, layoutScheme) || isPath(s) && push.IsLayout(s)
}

func openLayout(ctx context.Context, u *upstreamClient, name string) (*push.Source, error) {
	dir, tag := name, ""
	if rest, ok := strings.CutPrefix(name, layoutScheme); ok {
		dir, tag = splitLayout(rest)
	}
	l, err := push.OpenLayout(dir, tag)
	if err != nil {
		return nil, err
	}
	var src *push.Source
	artifact, err := l.Artifact()
	if err == nil {
		src, err = u.fromArtifact(ctx, "", artifact, l)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), l.Close())
	}
	src.Close = closeAll(src.Close, l.Close)
	return src, nil
}

func openOllama(ctx context.Context, u *upstreamClient, name string) (*push.Source, error) {
	dir, model := splitOllama(strings.TrimPrefix(name, ollamaScheme))
	if _, err := localstore.ParseName(model); err != nil {
		return nil, &usageError{err}
	}
	dir, err := config.OllamaModels(dir, "ollama:DIR:"+model)
	if err != nil {
		return nil, err
	}
	s, err := localstore.Open(dir)
	if err != nil {
		return nil, err
	}
	var src *push.Source
	a, err := s.Artifact(model)
	if err == nil {
		if src, err = u.fromArtifact(ctx, "", a, s); err != nil {
			err = s.Explain(a.Name(), err)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), s.Close())
	}
	src.Close = closeAll(src.Close, s.Close)
	return src, nil
}

func openCartonFile(ctx context.Context, u *upstreamClient, name string) (*push.Source, error) {
	var s carton.Source
	var err error
	if info, statErr := os.Stat(name); statErr == nil && info.IsDir() {
		s, err = carton.OpenFolder(name)
	} else {
		s, err = carton.OpenFile(name)
	}
	if err != nil {
		return nil, err
	}
	src, err := u.fromCarton(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return src, nil
}

func openCartonName(ctx context.Context, u *upstreamClient, name string) (*push.Source, error) {
	address, _ := cartonAddress(name)
	return u.fromURL(ctx, address)
}

func openReference(ctx context.Context, u *upstreamClient, name string) (*push.Source, error) {
	ref, err := admin.ParseRef(name)
	if err != nil {
		return nil, &usageError{err}
	}
	if address, ok := registry.CartonURL(upstream.Cartons(u.cfg), ref); ok {
		src, err := u.fromURL(ctx, address)
		return src, mapped(ref, address, err)
	}
	repo, served, m, runner, err := u.resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	if format, err := convert.Detect(m); err == nil && format == mediatype.FormatIndex {
		return nil, indexError(ref, m)
	}
	src, err := u.fromArtifact(ctx, runner, repo.Artifact(served), repo)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	if src.Close == nil { // the blobs of a carton are in no repository
		src.Host, src.Repository = ref.Host, ref.Repository
	}
	return src, nil
}

// resolve asks the registry what a reference names; runner is the Ollama runner that its tag ends in.
func (u *upstreamClient) resolve(ctx context.Context, ref remote.Ref) (repo *remote.Repository, served remote.Manifest, m *convert.Manifest, runner string, err error) {
	if repo, err = u.client.Repository(ref, nil); err != nil {
		return nil, served, nil, "", err
	}
	if served, runner, err = registry.ResolveTag(ctx, repo, ref); err != nil {
		return nil, served, nil, "", err
	}
	if m, err = convert.ParseManifest(served.Bytes); err != nil {
		return nil, served, nil, "", fmt.Errorf("%s: %w", ref, err)
	}
	return repo, served, m, runner, nil
}

// fromArtifact makes a Source of an artifact whose blobs f reads. Files of a carton that is a layer
// are read from that.
func (u *upstreamClient) fromArtifact(ctx context.Context, runner string, a convert.Artifact, f transfer.Fetcher) (*push.Source, error) {
	src, err := push.FromArtifact(ctx, u.parsers(runner), a, f)
	if err != nil {
		return nil, err
	}
	m, err := convert.ParseManifest(a.Manifest())
	if err != nil {
		return nil, err
	}
	i, ok := m.CartonLayer()
	// Of an image that was converted before, all files are blobs.
	before := slices.ContainsFunc(m.Layers, func(d convert.Descriptor) bool { return d.MediaType == mediatype.TableLayer })
	if !ok || before || src.Model.Table.Origin.Format != string(mediatype.FormatCarton) {
		return src, nil
	}
	c, err := carton.Open(ctx, carton.Blob(f, m.Layers[i].Digest, m.Layers[i].Size), u.cartons)
	if err != nil {
		return nil, err
	}
	src.Fetcher, src.Close = c.Fetcher(), c.Close
	return src, nil
}

// fromURL makes a Source of the carton at a URL.
func (u *upstreamClient) fromURL(ctx context.Context, address string) (*push.Source, error) {
	s, err := carton.OpenURL(ctx, address, u.cartons)
	if err != nil {
		return nil, err
	}
	return u.fromCarton(ctx, s)
}

// fromCarton makes a Source of a carton, and takes s over.
func (u *upstreamClient) fromCarton(ctx context.Context, s carton.Source) (*push.Source, error) {
	c, err := carton.Open(ctx, s, u.cartons)
	if err != nil {
		return nil, err
	}
	model, err := c.Model(ctx)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &push.Source{Model: model, Fetcher: c.Fetcher(), Close: c.Close}, nil
}

// closeAll calls functions, but nil, in order.
func closeAll(all ...func() error) func() error {
	return func() error {
		var errs []error
		for _, f := range all {
			if f != nil {
				errs = append(errs, f())
			}
		}
		return errors.Join(errs...)
	}
}

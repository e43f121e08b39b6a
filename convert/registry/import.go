package registry

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ImportPrefix is the prefix of the names of the store's references that keep the tables of a running Import.
const ImportPrefix = "import/"

// importTime limits how long a crash during an Import keeps its tables.
const importTime = 24 * time.Hour

// A Blobs has the blobs of an archive of images on this machine. It is not trusted.
type Blobs interface {
	transfer.Fetcher

	// Artifact returns the manifest with a descriptor.
	Artifact(ctx context.Context, desc ocispec.Descriptor) (convert.Artifact, error)

	// OpenBlob opens the file of a blob; see store.LinkOptions.
	OpenBlob(d digest.Digest) (*os.File, error)
}

// An Import takes over the image of a manifest in an archive, as the image of a reference. It leaves nothing
// unless Commit is called.
type Import struct {
	h     *Handler
	ref   remote.Ref
	o     ImportOptions
	blobs Blobs
	parts []*importPart
	index *store.Image // nil for a model
	built []byte       // the manifest of index
	done  bool         // Commit has ended
}

// An importPart is a model of an Import.
type importPart struct {
	ref    remote.Ref
	origin digest.Digest // its manifest in the archive
	source *resolve.Source
	image  *image.Image
	record store.Image
	keep   string         // name of the reference that keeps the table
	had    store.Holdings // what was here before
}

// ImportOptions say who on the node gets what is imported. The zero value is everybody.
type ImportOptions struct {
	// Private gives the image and its files only to callers that can read the origin at its reference.
	Private bool

	// PrivateFiles gives the files only to callers that use the name of the reference.
	PrivateFiles bool
}

// Import reads the model, or the models of an index, with a descriptor in an archive, as a pull of ref reads
// those of a registry. It returns convert.ErrNotModel if there is no model. The caller closes the Import.
func (h *Handler) Import(ctx context.Context, ref remote.Ref, blobs Blobs, desc ocispec.Descriptor, o ImportOptions) (*Import, error) {
	o.PrivateFiles = o.PrivateFiles || o.Private
	i := &Import{h: h, ref: ref, o: o, blobs: blobs}
	if err := i.read(ctx, desc); err != nil {
		return nil, errors.Join(err, i.Close())
	}
	return i, nil
}

func (i *Import) read(ctx context.Context, desc ocispec.Descriptor) error {
	a, err := i.blobs.Artifact(ctx, desc)
	if err != nil {
		return err
	}
	o, err := resolve.Local(i.ref, a)
	if err != nil {
		return err
	}
	if o.Format != mediatype.FormatIndex {
		_, err := i.model(ctx, i.ref, o)
		return err
	}
	var mu sync.Mutex // guards parts and documents
	var documents int64
	index, err := resolve.Index(ctx, o, func(ctx context.Context, d convert.Descriptor) (*image.Image, error) {
		a, err := i.blobs.Artifact(ctx, d.Descriptor)
		if err != nil {
			return nil, err
		}
		child, err := resolve.Local(o.Child(d.Digest), a)
		if err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		if documents += int64(len(child.Served.Bytes)); documents > maxIndexDocuments {
			return nil, &filetable.LimitError{Limit: LimitIndex, Err: fmt.Errorf("%s: the manifests of the models of the index have more than %d bytes: %w",
				o.Ref, maxIndexDocuments, errdefs.ErrInvalidArgument)}
		}
		return i.model(ctx, child.Ref, child)
	})
	if err != nil {
		return err
	}
	key, err := i.h.Key(o)
	i.index, i.built = &store.Image{Manifest: index.Digest, Origin: key, Ahead: index.Digest == key.Digest}, index.Manifest
	return err
}

// model adds a model to the parts.
func (i *Import) model(ctx context.Context, ref remote.Ref, o *resolve.Origin) (*image.Image, error) {
	o.AsFiles()
	s, err := i.h.OpenLocal(ctx, o, i.blobs)
	if err != nil {
		return nil, err
	}
	p := &importPart{ref: ref, origin: o.Served.Digest, source: s}
	i.parts = append(i.parts, p)
	if s.Model == nil {
		return nil, fmt.Errorf("%s: %w", ref, convert.ErrNotModel)
	}
	if p.image, err = s.Image(); err != nil {
		return nil, err
	}
	p.record = store.Image{
		Manifest: p.image.Digest, Config: p.image.ConfigDigest, Table: p.image.TableDigest,
		Origin: s.Model.Table.Origin, Size: tableSize(&s.Model.Table),
	}
	if o.Ahead() { // see adopt
		p.record.Ahead, p.record.Origin.Digest = true, p.origin
	}
	p.had = i.h.Store.Holdings(&s.Model.Table, p.documents()...)
	return p.image, nil
}

// documents returns the digests of what describes a model.
func (p *importPart) documents() []digest.Digest {
	return []digest.Digest{p.record.Table, p.record.Config}
}

// admit checks a model, whose table is stored, against the rules of signatures, and a manifest that has more than
// the model.
func (i *Import) admit(ctx context.Context, p *importPart) error {
	if i.h.Signatures == nil {
		return nil
	}
	if _, err := i.h.Store.PutBytes(p.image.Config); err != nil { // it has the licence
		return err
	}
	s := signature.Subject{
		Names: []string{i.ref.Name()}, Manifests: slices.Compact([]digest.Digest{p.origin, p.record.Manifest}),
		FilesOnly: filesOnly(p.record, p.record), Image: p.record,
		Repositories: i.h.signers([]remote.Ref{i.ref}, i.h.asNode(p.record)),
	}
	_, err := i.h.Signatures.Allow(ctx, s)
	if p.source.Extended() && err == nil {
		s.Image = store.Image{}
		_, err = i.h.Signatures.Allow(ctx, s)
	}
	return err
}

// Fetch checks signatures if a rule requires them, for which alone a registry is asked, and makes the files of all
// models objects: by links, if the file system and the archive allow it, otherwise by copies. It returns the bytes
// that were not copied. progress is called as store.HydrateOptions.Progress.
func (i *Import) Fetch(ctx context.Context, progress func(table digest.Digest, ps []store.Progress)) (linked store.Linked, err error) {
	for _, p := range i.parts {
		l, err := i.fetch(ctx, p, func(ps []store.Progress) { progress(p.record.Table, ps) })
		linked.Cloned, linked.Hard = linked.Cloned+l.Cloned, linked.Hard+l.Hard
		if err != nil {
			return linked, err
		}
	}
	return linked, nil
}

func (i *Import) fetch(ctx context.Context, p *importPart, progress func([]store.Progress)) (store.Linked, error) {
	s, table := i.h.Store, p.record.Table
	p.keep = ImportPrefix + rand.Text()
	if _, err := s.PutTable(p.image.Table); err != nil {
		return store.Linked{}, err
	}
	if err := s.AddRef(p.keep, table, time.Now().Add(importTime)); err != nil {
		return store.Linked{}, err
	}
	if err := i.admit(ctx, p); err != nil {
		return store.Linked{}, err
	}
	fresh := map[digest.Digest]bool{} // linked, so Hydrate finds them present, and they were not before
	o := store.LinkOptions{Open: i.blobs.OpenBlob, Progress: func(ps []store.Progress) {
		for _, b := range ps {
			fresh[b.Blob] = b.State == store.StateComplete
		}
		progress(ps)
	}}
	if i.o.PrivateFiles {
		o.Private = i.ref.Name()
	}
	linked, err := s.Link(ctx, table, o)
	if err != nil {
		return linked, err
	}
	from := transfer.Source{Name: i.ref.Name(), CredentialsID: "import", Fetcher: &importFetcher{p.source.Fetcher, i.o.PrivateFiles}}
	return linked, s.Hydrate(ctx, table, store.HydrateOptions{Sources: []transfer.Source{from}, Progress: func(ps []store.Progress) {
		for n, b := range ps {
			if fresh[b.Blob] {
				ps[n].State = store.StateComplete
			}
		}
		progress(ps)
	}})
}

// An importFetcher reads blobs of an archive.
type importFetcher struct {
	transfer.Fetcher
	private bool
}

// Fetch implements transfer.Fetcher.
func (f *importFetcher) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	body, start, err := f.Fetcher.Fetch(ctx, d, size, off, n)
	if err != nil {
		return nil, 0, err
	}
	return transfer.NewBody(ctx, body, f.private), start, nil
}

// Commit records the image, and calls pin for each model, whose reference is that of the Import or, in an
// index, has its digest. It returns the image.
func (i *Import) Commit(pin func(im store.Image, ref remote.Ref) error) (im store.Image, err error) {
	var undo []func() error
	defer func() {
		for _, f := range undo {
			if err != nil {
				err = errors.Join(err, f())
			}
		}
	}()
	for _, p := range i.parts {
		if im, err = i.record(p.record, p.ref, p.image.Manifest, p.image.Config); err != nil {
			return store.Image{}, err
		}
		undo = append(undo, func() error { return i.h.Store.Catalog.RemoveRefs(p.record.Manifest, p.ref.Recorded()) })
		if err := pin(im, p.ref); err != nil {
			return store.Image{}, err
		}
	}
	if i.index != nil {
		im, err = i.record(*i.index, i.ref, i.built)
	}
	i.done = err == nil
	return im, err
}

func (i *Import) record(im store.Image, ref remote.Ref, documents ...[]byte) (store.Image, error) {
	im.Imported = []string{ref.Recorded()}
	return i.h.record(im, source{ref: ref.Recorded(), name: nameOf(ref).String(), private: i.o.Private}, documents...)
}

// Close is CloseImports for one.
func (i *Import) Close() error { return CloseImports(i) }

// CloseImports removes what nothing needs: after Commit only what kept the models in between. Imports that were
// begun together, before the first Fetch, end together, because they can share files.
func CloseImports(imports ...*Import) error {
	ctx := context.Background()
	var errs []error
	each := func(f func(i *Import, p *importPart) error) {
		for _, i := range imports {
			for _, p := range i.parts {
				errs = append(errs, f(i, p))
			}
		}
	}
	each(func(i *Import, p *importPart) error {
		if p.keep == "" {
			return nil
		}
		_, err := i.h.Store.Abandon(ctx, p.record.Table)
		return errors.Join(err, i.h.Store.RemoveRef(p.keep))
	})
	each(func(i *Import, p *importPart) error {
		if p.keep == "" || i.done {
			return nil
		}
		return i.h.Store.Discard(&p.source.Model.Table, p.had, p.documents()...)
	})
	each(func(_ *Import, p *importPart) error { return p.source.Close() })
	return errors.Join(errs...)
}

// imported returns the image that was imported by the name ref, or from the origin that ref names in a repository, if
// upstream did not answer as asked: its registry wins over an import whenever it answers, even with an error about
// the caller or the name.
func (h *Handler) imported(ctx context.Context, ref remote.Ref, as caller, err error) (store.Image, bool) {
	if !errdefs.IsUnavailable(err) || ctx.Err() != nil {
		return store.Image{}, false
	}
	all, by := h.Store.Catalog.ImagesByRef(ref.Recorded()), func(name string) bool { return name == ref.Recorded() }
	if ref.Digest != "" {
		all = h.Store.Catalog.ImagesByOrigin(ref.Digest)
		by = func(name string) bool {
			r, err := remote.ParseRef(name)
			return err == nil && nameOf(r) == nameOf(ref)
		}
	}
	for _, im := range all {
		if slices.ContainsFunc(im.Imported, by) && (as.node || isPublic(im, nameOf(ref))) && h.complete(im) {
			h.log().Info("registry does not answer; the imported model is used", "ref", ref.String(), "digest", im.Manifest, "err", err)
			return im, true
		}
	}
	return store.Image{}, false
}

// ImportName returns the reference of a model in an archive: name, or that in the archive.
func ImportName(name, inArchive string) (remote.Ref, error) {
	ref, err := resolve.ParseRef(cmp.Or(name, inArchive))
	switch {
	case name == "" && (err != nil || !strings.Contains(inArchive, "/")):
		return remote.Ref{}, fmt.Errorf("the archive calls the model %.300q, which is not a reference with a registry; give it one with --name: %w", inArchive, errdefs.ErrInvalidArgument)
	case err == nil && (ref.URL != "" || ref.Digest != ""):
		err = fmt.Errorf("%.300q is not REGISTRY/REPOSITORY[:TAG]: %w", cmp.Or(name, inArchive), errdefs.ErrInvalidArgument)
	}
	return ref, err
}

package registry

import (
	"context"
	"fmt"
	"slices"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
)

// maxImageConfig is the largest config of an image that was converted ahead of time, in bytes.
const maxImageConfig = 8 << 20 // 8 MiB

// isTable says whether a layer is a file table.
func isTable(d convert.Descriptor) bool { return d.MediaType == mediatype.TableLayer }

// ahead says whether o is an image that was converted before it was pushed.
func (o *origin) ahead() bool { return slices.ContainsFunc(o.parsed.Layers, isTable) }

// madeAhead says the same of an image that is known: see adopt.
func madeAhead(im store.Image) bool { return im.Origin.Digest == im.Manifest }

// adopt makes an image that was converted ahead of time known to the store by the name that it was
// resolved from, so that it can be prefetched, pinned and listed as those made here.
//
// Its Origin is itself, not what its table says: who asks for the origin gets what this node makes of
// it, whatever others say that they made.
func (h *Handler) adopt(ctx context.Context, o *origin, who caller) (store.Image, error) {
	im, err := h.Store.Image(ctx, o.served.Digest)
	if err == nil && h.whole(im) {
		return h.used(ctx, im, o.source())
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return store.Image{}, err
	}
	key := filetable.Origin{Format: "ahead", Digest: o.served.Digest}
	im, err = h.alone(ctx, flightKey(key, o, who), nil, func(ctx context.Context) (store.Image, error) { return h.bring(ctx, o) })
	if err != nil {
		return store.Image{}, fmt.Errorf("%s: %w", o.ref, err)
	}
	return h.used(ctx, im, o.source())
}

// bring reads the documents of an image that was converted ahead of time.
func (h *Handler) bring(ctx context.Context, o *origin) (store.Image, error) {
	i := slices.IndexFunc(o.parsed.Layers, isTable)
	if slices.ContainsFunc(o.parsed.Layers[i+1:], isTable) {
		return store.Image{}, fmt.Errorf("it has several file tables: %w", errdefs.ErrNotImplemented)
	}
	if err := h.Store.TrimImages(ctx, o.ref.Host); err != nil {
		return store.Image{}, err
	}
	artifact := o.repo.Artifact(o.served)
	var table, config []byte
	g, gctx := errgroup.WithContext(ctx)
	read := func(p *[]byte, d convert.Descriptor, limit int64) func() error {
		return func() (err error) {
			*p, err = artifact.ReadBlob(gctx, ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}, limit)
			return err
		}
	}
	g.Go(read(&table, o.parsed.Layers[i], filetable.MaxSize))
	g.Go(read(&config, o.parsed.Config, maxImageConfig))
	if err := g.Wait(); err != nil {
		return store.Image{}, err
	}
	t, err := filetable.Decode(table)
	if err != nil {
		return store.Image{}, err
	}
	im := store.Image{
		Manifest: o.served.Digest, Size: tableSize(t),
		Origin: filetable.Origin{Format: t.Origin.Format, Digest: o.served.Digest, Mapping: t.Origin.Mapping},
	}
	if im.Table, err = h.Store.PutTable(ctx, table); err != nil {
		return store.Image{}, err
	}
	if im.Config, err = h.Store.PutBytes(ctx, config); err != nil {
		return store.Image{}, err
	}
	if _, err := h.Store.PutBytes(ctx, o.served.Bytes); err != nil {
		return store.Image{}, err
	}
	return h.record(ctx, im, o.source())
}

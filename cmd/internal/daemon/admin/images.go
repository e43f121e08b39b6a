package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/translate"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/headers"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// maxConfig limits the image config that is returned, in bytes.
const maxConfig = 8 << 20 // 8 MiB

// isContainerds reports whether a reference belongs to containerd: a snapshot, or an image whose
// model a pod mounts.
func isContainerds(r store.Ref) bool {
	return strings.HasPrefix(r.Name, modelname.SnapshotPrefix) || strings.HasPrefix(r.Name, modelname.OriginPrefix)
}

// images lists all images with their state and, if sized is set, their share of the disk.
func (h *Handler) images(ctx context.Context, sized bool) ([]wire.Image, error) {
	all := h.Store.Catalog.Images()
	out := make([]wire.Image, 0, len(all))
	refs := h.Store.Catalog.Refs("")
	for _, im := range all {
		v, _ := h.state(ctx, im, refs)
		out = append(out, v)
	}
	work := h.Jobs.Status(ctx).Jobs
	rest, err := h.unnamed(all, refs, work)
	for _, m := range rest {
		v, _ := h.state(ctx, m.im, refs)
		v.Sources = m.sources
		out = append(out, v)
	}
	addWork(out, work)
	if sized {
		shares := h.Store.Shares()
		for i := range out {
			out[i].Share = new(wire.Share(shares[out[i].ID()]))
		}
	}
	return out, err
}

// addWork adds to images that are being downloaded what their running jobs report: the rate of the fastest, an
// error, and the end if nobody waits for any.
func addWork(images []wire.Image, work []wire.Job) {
	running := map[digest.Digest][]wire.Job{}
	for _, j := range work {
		if j.Ended.IsZero() {
			running[j.Table] = append(running[j.Table], j)
		}
	}
	for i := range images {
		im := &images[i]
		if im.State != wire.StatePulling && im.State != wire.StateLazy {
			continue
		}
		for n, j := range running[im.Table] {
			im.Rate, im.Error = max(im.Rate, j.Rate), cmp.Or(j.Error, im.Error)
			if n == 0 || j.Ends.IsZero() {
				im.Ends = j.Ends
			}
		}
	}
}

// state returns im with its state, and its files if it is complete, for sources with names if there are any. An image
// that cannot be shown does not hide the others: its state is StateInvalid.
func (h *Handler) state(ctx context.Context, im store.Image, refs []store.Ref, names ...string) (wire.Image, []filetable.File) {
	if im.Refs == nil {
		im.Refs = []string{} // [] in JSON
	}
	v := wire.Image{Record: translate.Image(im), State: wire.StateComplete}
	if isIndex(im) {
		v.State = wire.StateIndex
		if _, err := h.children(im); err != nil {
			invalid(&v, err)
		}
		return v, nil
	}
	for _, ref := range refs {
		switch {
		case ref.Table != im.Table:
		case strings.HasPrefix(ref.Name, modelname.PinPrefix):
			ref.Name = modelname.Pinned(ref)
			v.Pins = append(v.Pins, wire.Ref(ref))
		case isContainerds(ref):
			v.Snapshots++
		}
	}
	st, err := h.Store.State(ctx, im.Table, names...)
	if err != nil {
		invalid(&v, err)
	} else if st.Incomplete() {
		h.incomplete(&v, st)
		if v.State == wire.StatePulling || v.State == wire.StateLazy {
			if v.Early, v.Eager, err = h.Node.Early(ctx, im); err != nil {
				invalid(&v, err)
			}
		}
	}
	return v, st.Files
}

// incomplete sets the state of an image with missing files.
func (h *Handler) incomplete(v *wire.Image, st store.State) {
	switch {
	case len(st.Early) > 0:
		v.State, v.Total, v.Completed = wire.StateLazy, st.Total, st.Done
	case st.Running:
		v.State = wire.StatePulling
		for _, p := range st.Blobs {
			v.Total += p.Total
			v.Completed += p.Done
		}
	default:
		v.State = wire.StateAbsent
		if st.Begun {
			v.State = wire.StatePartial
		}
		if len(st.Lost) > 0 { // it was complete
			v.Error = wire.Wrap(fmt.Errorf("%d of its objects are damaged or missing, such as %s: %w", len(st.Lost), st.Lost[0].Digest, errdefs.ErrDataLoss))
		}
		return
	}
	v.Paused = h.Store.Paused() && !st.Awaited
}

// image returns all facts about one image.
func (h *Handler) image(ctx context.Context, name modelname.Name) (*wire.Detail, error) {
	refs := h.Store.Catalog.Refs("")
	d := &wire.Detail{Files: []wire.File{}, Blobs: []wire.Blob{}}
	im, err := h.findShown(ctx, name)
	if err != nil {
		// An index that cannot be read is shown as far as it is known.
		found, findErr := h.find(name)
		if findErr != nil || len(found) != 1 || !isIndex(found[0]) {
			return nil, err
		}
		if d.Image, _ = h.state(ctx, found[0], refs); d.State != wire.StateInvalid {
			return nil, err
		}
		return d, nil
	}
	var names []string // what they have not given is not complete
	if name.IsRef() {
		names = []string{name.Ref.Name()}
	}
	var files []filetable.File
	d.Image, files = h.state(ctx, im, refs, names...)
	if d.Signatures, err = h.signers(im); err != nil {
		return nil, err
	}
	t, err := h.Store.Table(im.Table)
	if err != nil {
		invalid(&d.Image, err)
	} else {
		d.Blobs = translate.Blobs(t.Blobs)
		if files == nil {
			files = t.Seen()
		}
		use, err := h.Store.ChunkUse(ctx, im.Table)
		if err != nil {
			return nil, err
		}
		if use.Chunks > 0 {
			d.Chunks = new(wire.ChunkUse(use))
		}
	}
	d.Files = translate.Files(files)
	if t == nil {
		t = &filetable.Table{Origin: im.Origin}
	}
	h.explain(ctx, d, im, t, files)
	return d, nil
}

// invalid marks v as an image that cannot be shown because of err.
func invalid(v *wire.Image, err error) {
	if errdefs.IsNotFound(err) {
		err = fmt.Errorf("a document of it is gone, its next pull or prefetch by tag makes it again: %w", err)
	}
	v.State, v.Error = wire.StateInvalid, wire.Wrap(err)
}

// explain adds facts from the documents of an image and its files to d. What cannot be read is left out.
func (h *Handler) explain(ctx context.Context, d *wire.Detail, im store.Image, t *filetable.Table, files []filetable.File) {
	p, err := h.Store.ReadDocument(im, im.Config, maxConfig)
	if err != nil || !json.Valid(p) {
		return
	}
	d.ConfigJSON = p
	origin, err := convert.ParseConfig(p)
	if err != nil {
		return
	}
	var contextLength int64
	var runner convert.Runner
	if p, err := h.Store.ReadDocument(im, im.Manifest, convert.MaxManifestSize); err == nil {
		if m, err := convert.ParseManifest(p); err == nil {
			contextLength, runner = image.ContextLength(m.Annotations), image.RunnerOf(m.Annotations)
		}
	}
	d.Description = translate.Describe(origin, contextLength, runner, h.headers(ctx, files, registry.Names(im)))
	translate.Explain(d, t)
}

// headers reads the headers of the files of an image with names that are present, which are verified objects. It does
// not read what its table says that it has, and somebody else has.
func (h *Handler) headers(ctx context.Context, files []filetable.File, names []string) headers.Report {
	var list []headers.File
	for _, f := range files {
		if f.Type != filetable.TypeReg || f.Digest == "" || !headers.Has(f.Path, f.Size) || len(list) > headers.MaxFiles {
			continue
		}
		open := func(context.Context) (io.ReadCloser, error) { return h.Store.OpenObject(f.Digest, names) }
		r, err := open(ctx)
		if errdefs.IsNotFound(err) {
			continue // not downloaded yet
		}
		if err == nil {
			r.Close()
		}
		list = append(list, headers.File{Path: f.Path, Size: f.Size, Open: open, Digest: f.Digest})
	}
	return headers.Read(ctx, list)
}

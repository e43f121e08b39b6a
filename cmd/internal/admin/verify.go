package admin

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// progressEvery is the time between two lines of progress.
const progressEvery = 200 * time.Millisecond

func (h *Handler) verify(w http.ResponseWriter, r *http.Request) {
	var req VerifyRequest
	out := newStream(w)
	err := decodeBody(r, &req)
	var res *VerifyResult
	if err == nil {
		progress, end := h.Verifying(req.Name)
		res, err = h.check(r.Context(), req, func(e VerifyEvent) {
			progress(e.Completed, e.Total)
			_ = out.send(e)
		})
		end(err)
	}
	if err != nil {
		_ = out.send(VerifyEvent{Status: StatusError, Result: res, Error: Wrap(err)})
		return
	}
	_ = out.send(VerifyEvent{Status: StatusSuccess, Result: res})
}

// check reads what req asks for, and repairs if it says so. If a repair fails, it returns what
// was found as well as the error.
func (h *Handler) check(ctx context.Context, req VerifyRequest, event func(VerifyEvent)) (*VerifyResult, error) {
	var table digest.Digest
	if req.Name != "" {
		im, err := findOne(ctx, h.Store, req.Name)
		if err != nil {
			return nil, err
		}
		table = im.Table
	}
	res := &VerifyResult{Bad: []store.CheckResult{}}
	var last time.Time
	bad, err := h.Store.Check(ctx, table, func(done, total int64) {
		res.Bytes = done
		if now := time.Now(); now.Sub(last) >= progressEvery {
			last = now
			event(VerifyEvent{Status: "verifying", Total: total, Completed: done})
		}
	})
	if err != nil {
		return nil, err
	}
	res.Bad = append(res.Bad, bad...)
	res.Left = len(bad)
	for _, b := range bad {
		h.Log.Warn("object is not well", "digest", b.Digest, "problem", b.Problem, "repair", req.Repair)
	}
	if res.Snapshots, err = h.Snapshots(ctx, table); err != nil {
		return nil, err
	}
	res.LeftSnapshots = len(res.Snapshots)
	for _, p := range res.Snapshots {
		h.Log.Warn("snapshot is not well", "snapshot", p.Snapshot, "table", p.Table, "path", p.Path, "problem", p.Problem, "repair", req.Repair)
	}
	if !req.Repair || len(bad)+len(res.Snapshots) == 0 {
		return res, nil
	}
	err = h.repair(ctx, req.Name, table, res, event)
	return res, err
}

// repair makes the documents of images again that are not there, shows again what is shown wrongly, and
// fetches what tables lack: all, or the one that was asked for by a name. It goes on after an error and
// returns the first.
func (h *Handler) repair(ctx context.Context, name string, only digest.Digest, res *VerifyResult, event func(VerifyEvent)) error {
	resolved, first := h.resolveAgain(ctx, only)
	res.Repaired = append(res.Repaired, resolved...)
	tables, err := h.showAgain(ctx, res)
	if err != nil {
		return err
	}
	if len(res.Bad) > 0 {
		hurt, err := h.hurt(ctx, only, res.Bad)
		if err != nil {
			return err
		}
		tables = append(tables, hurt...)
		slices.Sort(tables)
		tables = slices.Compact(tables)
	}
	for _, t := range tables {
		if f, err := h.Store.OpenObject(t); err == nil {
			f.Close()
		} else if errdefs.IsNotFound(err) && first != nil {
			continue // nobody knows what it lacks, and why is said already
		}
		names, err := h.repairTable(ctx, name, t, event)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		res.Repaired = append(res.Repaired, names...)
		if err == nil {
			continue
		}
		h.Log.Error("repair", "table", t, "err", err)
		if first == nil {
			first = err
		}
	}
	slices.Sort(res.Repaired)
	res.Repaired = slices.Compact(res.Repaired)
	left, err := h.Snapshots(ctx, only)
	if err != nil && first == nil {
		first = err
	}
	res.LeftSnapshots = len(left)
	res.Left = 0
	for _, b := range res.Bad {
		f, err := h.Store.OpenObject(b.Digest)
		if err != nil {
			res.Left++
			continue
		}
		f.Close()
	}
	return first
}

// resolveAgain makes the documents of images again that are not there: of those with the table only,
// or of all if that is empty. It returns the references of those that it made, and the first error.
func (h *Handler) resolveAgain(ctx context.Context, only digest.Digest) (names []string, first error) {
	images, err := h.Store.Images(ctx)
	if err != nil {
		return nil, err
	}
	for _, im := range images {
		if only != "" && im.Table != only || h.documented(im) {
			continue
		}
		err := h.Resolve(ctx, im)
		if err == nil {
			names = append(names, im.Refs...)
			continue
		}
		h.Log.Error("repair", "digest", im.Manifest, "err", err)
		if first == nil {
			first = aboutAll(im.Refs, err)
		}
	}
	return names, first
}

// documented says whether the documents of an image are there.
func (h *Handler) documented(im store.Image) bool {
	for _, d := range []digest.Digest{im.Manifest, im.Config, im.Table} {
		if d == "" { // an index has a manifest only
			continue
		}
		f, err := h.Store.OpenObject(d)
		if err != nil {
			return false
		}
		f.Close()
	}
	return true
}

// showAgain mends the snapshots that are not well with what is there, and returns the tables for which
// that did not go, because something has to be fetched.
func (h *Handler) showAgain(ctx context.Context, res *VerifyResult) (lacking []digest.Digest, err error) {
	done := map[digest.Digest]bool{"": true} // nobody knows what it was
	for _, p := range res.Snapshots {
		if done[p.Table] {
			continue
		}
		done[p.Table] = true
		if err := h.Repaired(ctx, p.Table); err != nil {
			h.Log.Warn("snapshots of a model can not be mended with what is there", "table", p.Table, "err", err)
			lacking = append(lacking, p.Table)
			continue
		}
		images, err := h.Store.ImagesByTable(ctx, p.Table)
		if err != nil {
			return nil, err
		}
		for _, im := range images {
			res.Repaired = append(res.Repaired, im.Refs...)
		}
	}
	return lacking, nil
}

// hurt returns the tables that need an object of bad: only, if it is not empty, otherwise those
// with a reference and those of images. What an evicted model had is not missed.
func (h *Handler) hurt(ctx context.Context, only digest.Digest, bad []store.CheckResult) ([]digest.Digest, error) {
	if only != "" {
		return []digest.Digest{only}, nil
	}
	var tables []digest.Digest
	for _, b := range bad {
		tables = append(tables, b.Tables...)
	}
	images, err := h.Store.Images(ctx)
	if err != nil {
		return nil, err
	}
	for _, im := range images {
		if isIndex(im) {
			continue
		}
		missing, err := h.Store.Missing(ctx, im.Table)
		if err != nil {
			return nil, err
		}
		if len(missing) > 0 {
			tables = append(tables, im.Table)
		}
	}
	slices.Sort(tables)
	return slices.Compact(tables), nil
}

// repairTable fetches what a table lacks, and returns the references of its images.
func (h *Handler) repairTable(ctx context.Context, name string, t digest.Digest, event func(VerifyEvent)) ([]string, error) {
	images, err := h.Store.ImagesByTable(ctx, t)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, im := range images {
		names = append(names, im.Refs...)
	}
	sources, err := h.Sources(ctx, t, name)
	if err != nil {
		return nil, err
	}
	err = h.Store.Hydrate(ctx, t, store.HydrateOptions{Sources: sources, Progress: func(ps []store.Progress) {
		e := VerifyEvent{Status: "repairing"}
		for _, p := range ps {
			e.Total += p.Total
			e.Completed += p.Done
		}
		event(e)
	}})
	if err != nil && len(images) == 0 {
		err = fmt.Errorf("no image is known that has table %s; pull the image again whose snapshot shows it: %w", t, err)
	}
	if err != nil {
		return nil, aboutAll(names, err)
	}
	return names, h.Repaired(ctx, t)
}

// aboutAll says which images an error is about.
func aboutAll(names []string, err error) error {
	if len(names) == 0 {
		return err
	}
	return About(strings.Join(names, " "), err)
}

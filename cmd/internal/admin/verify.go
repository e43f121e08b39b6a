package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/translate"
	"github.com/ballast-dev/ballast/cmd/internal/wire"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/opencontainers/go-digest"
)

// progressEvery is the interval between two lines of progress.
const progressEvery = 200 * time.Millisecond

func (h *Handler) verify(ctx context.Context, req wire.VerifyRequest, out *lines) error {
	var name modelname.Name
	if req.Name != "" {
		var err error
		if name, err = modelname.Parse(req.Name); err != nil {
			return err
		}
	}
	label := name.String()
	if name.Ref.URL != "" {
		label = name.Ref.Name() // a query can be a signature
	}
	progress, end := h.Verifying(wire.KindVerify, label)
	res, err := h.check(ctx, name, req.Repair, func(e wire.VerifyEvent) {
		progress(e.Completed, e.Total)
		_ = out.send(e)
	})
	end(err)
	if err != nil {
		return out.send(wire.VerifyEvent{Status: wire.StatusError, Result: res, Error: wire.Wrap(err)})
	}
	return out.send(wire.VerifyEvent{Status: wire.StatusSuccess, Result: res})
}

// check verifies the objects of a model, or all if name is zero, and repairs them if repair is set. If a repair
// fails, it returns both the result and the error.
func (h *Handler) check(ctx context.Context, name modelname.Name, repair bool, event func(wire.VerifyEvent)) (*wire.VerifyResult, error) {
	var table digest.Digest
	if name != (modelname.Name{}) {
		im, err := h.findOne(ctx, name)
		if err != nil {
			return nil, err
		}
		table = im.Table
	}
	res := &wire.VerifyResult{Bad: []wire.BadObject{}}
	var last time.Time
	bad, err := h.Store.Check(ctx, table, func(done, total int64) {
		res.Bytes = done
		if now := time.Now(); now.Sub(last) >= progressEvery {
			last = now
			event(wire.VerifyEvent{Status: wire.StatusVerifying, Total: total, Completed: done})
		}
	})
	if err != nil {
		return nil, err
	}
	res.Bad = append(res.Bad, translate.Bad(bad)...)
	res.Left = len(bad)
	for _, b := range bad {
		h.Log.Warn("object is damaged or missing", "digest", b.Digest, "problem", b.Problem, "repair", repair)
	}
	if res.Snapshots, err = h.Snapshots(ctx, table); err != nil {
		return nil, err
	}
	res.LeftSnapshots = len(res.Snapshots)
	for _, p := range res.Snapshots {
		h.Log.Warn("snapshot differs from its table", "snapshot", p.Snapshot, "table", p.Table, "path", p.Path, "problem", p.Problem, "repair", repair)
	}
	if !repair || len(bad)+len(res.Snapshots) == 0 {
		return res, nil
	}
	if table == "" {
		if err := h.Forget(ctx); err != nil { // containerd may be down; what is left is reported
			h.Log.Warn("records of snapshots that do not exist stay in containerd", "err", err)
		}
	}
	err = h.repair(ctx, name.Ref, func(t digest.Digest) bool { return table == "" || t == table }, res, event)
	res.Left = 0
	for _, b := range bad {
		if !h.Store.Has(b.Digest) {
			res.Left++
		}
	}
	left, failed := h.Snapshots(ctx, table)
	if failed == nil {
		res.LeftSnapshots = len(left)
	} else if err == nil {
		err = failed
	}
	return res, err
}

// Scrub reads all objects again in the background, at most rate bytes a second and once in an interval, until ctx
// ends, which is not an error. What is damaged is repaired as by a verification.
func (h *Handler) Scrub(ctx context.Context, interval time.Duration, rate int64) error {
	return h.Store.Scrub(ctx, store.ScrubOptions{
		Interval: interval, Rate: rate,
		Begin:   func() (func(done, total int64), func(error)) { return h.Verifying(wire.KindScrub, "") },
		Damaged: func(ctx context.Context, bad []store.CheckResult) { h.repairDamaged(ctx, bad[:1]) },
	})
}

// CompareFiles compares the files of the store with its records in the background, until ctx ends. What is missing, or
// has another size, is repaired as by a verification.
func (h *Handler) CompareFiles(ctx context.Context) error {
	return h.Store.CompareFiles(ctx, h.repairDamaged)
}

// repairDamaged downloads what tables lack that need damaged or missing objects.
func (h *Handler) repairDamaged(ctx context.Context, bad []store.CheckResult) {
	tables, err := h.needing(ctx, bad)
	_, end := h.Verifying(wire.KindScrub, h.namesOf(tables))
	res := &wire.VerifyResult{Bad: translate.Bad(bad)}
	if err == nil {
		err = h.repair(ctx, remote.Ref{}, func(t digest.Digest) bool { return slices.Contains(tables, t) }, res, func(wire.VerifyEvent) {})
	}
	if err != nil {
		end(fmt.Errorf("%s is damaged or missing, and cannot be downloaded: %w", bad[0].Digest, err))
		return
	}
	h.Log.Info("damaged objects were downloaded again", "digest", bad[0].Digest, "objects", len(bad), "refs", res.Repaired)
	end(nil)
}

// needing returns the tables that need damaged or missing objects: those with a reference, and those of images. That of
// an index is empty.
func (h *Handler) needing(ctx context.Context, bad []store.CheckResult) (tables []digest.Digest, err error) {
	is := map[digest.Digest]bool{}
	for _, b := range bad {
		is[b.Digest] = true
		tables = append(tables, b.Tables...)
	}
	for _, im := range h.Store.Images() {
		needs := is[im.Manifest] || is[im.Config]
		if !needs && !isIndex(im) {
			missing, err := h.Store.Missing(ctx, im.Table)
			if err != nil {
				return nil, err
			}
			needs = slices.ContainsFunc(missing, func(m store.CheckResult) bool { return is[m.Digest] })
		}
		if needs {
			tables = append(tables, im.Table)
		}
	}
	slices.Sort(tables)
	return slices.Compact(tables), nil
}

// namesOf returns the references of the images of tables.
func (h *Handler) namesOf(tables []digest.Digest) string {
	var names []string
	for _, t := range tables {
		for _, im := range h.Store.ImagesByTable(t) {
			names = append(names, im.Refs...)
		}
	}
	return strings.Join(names, " ")
}

// repair restores missing documents of the images whose table is in a set, repairs the snapshots of res, and downloads
// what tables of the set lack. It continues after an error and returns the first.
func (h *Handler) repair(ctx context.Context, ref remote.Ref, in func(table digest.Digest) bool, res *wire.VerifyResult, event func(wire.VerifyEvent)) error {
	resolved, first := h.resolveAgain(ctx, in)
	res.Repaired = append(res.Repaired, resolved...)
	tables, err := h.showAgain(ctx, res)
	if err != nil {
		return err
	}
	if len(res.Bad) > 0 {
		lacking, err := h.lacking(ctx, in, res.Bad)
		if err != nil {
			return err
		}
		tables = append(tables, lacking...)
		slices.Sort(tables)
		tables = slices.Compact(tables)
	}
	for _, t := range tables {
		if first != nil && !h.Store.Has(t) {
			continue // what it lacks is unknown; first has the reason
		}
		names, err := h.repairTable(ctx, ref, t, event)
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
	return first
}

// resolveAgain restores missing documents of the images whose table is in a set; that of an index is empty. It returns
// the references of the restored images, and the first error.
func (h *Handler) resolveAgain(ctx context.Context, in func(table digest.Digest) bool) (names []string, first error) {
	images := h.Store.Images()
	for _, im := range images {
		if !in(im.Table) || h.Store.Has(im.Documents()...) {
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

// showAgain repairs snapshots from the store, and returns the tables with missing objects.
func (h *Handler) showAgain(ctx context.Context, res *wire.VerifyResult) (lacking []digest.Digest, err error) {
	done := map[digest.Digest]bool{"": true} // the table is unknown
	for _, p := range res.Snapshots {
		if done[p.Table] {
			continue
		}
		done[p.Table] = true
		if err := h.Repaired(ctx, p.Table); err != nil {
			h.Log.Warn("snapshots of a model cannot be repaired before something is fetched", "table", p.Table, "err", err)
			lacking = append(lacking, p.Table)
			continue
		}
		images := h.Store.ImagesByTable(p.Table)
		for _, im := range images {
			res.Repaired = append(res.Repaired, im.Refs...)
		}
	}
	return lacking, nil
}

// lacking returns the tables of a set that lack something: those with a reference that need an object of bad, and those of
// images. Objects of an evicted model are not missing.
func (h *Handler) lacking(ctx context.Context, in func(table digest.Digest) bool, bad []wire.BadObject) ([]digest.Digest, error) {
	var tables []digest.Digest
	for _, b := range bad {
		tables = append(tables, b.Tables...)
	}
	tables = slices.DeleteFunc(tables, func(t digest.Digest) bool { return !in(t) })
	images := h.Store.Images()
	for _, im := range images {
		if isIndex(im) || !in(im.Table) {
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

// repairTable downloads what a table lacks, and returns the references of its images.
func (h *Handler) repairTable(ctx context.Context, ref remote.Ref, t digest.Digest, event func(wire.VerifyEvent)) ([]string, error) {
	images := h.Store.ImagesByTable(t)
	var names []string
	for _, im := range images {
		names = append(names, im.Refs...)
	}
	sources, err := h.Sources(ctx, t, ref)
	if err != nil {
		return nil, err
	}
	err = h.Store.Hydrate(ctx, t, store.HydrateOptions{Sources: sources, Progress: func(ps []store.Progress) {
		e := wire.VerifyEvent{Status: wire.StatusRepairing}
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

// aboutAll prefixes an error with the references of images.
func aboutAll(names []string, err error) error {
	if len(names) == 0 {
		return err
	}
	return wire.About(strings.Join(names, " "), err)
}

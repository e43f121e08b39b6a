package care

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/translate"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/opencontainers/go-digest"
)

// progressEvery is the interval between two lines of progress.
const progressEvery = 200 * time.Millisecond

// Verify compares the objects and snapshots of a table, or all if table is empty, with their digests, and repairs
// them if repair is set. ref is the reference by which the model was requested, or zero. If a repair fails, it
// returns both the result and the error.
func (c *Care) Verify(ctx context.Context, table digest.Digest, ref remote.Ref, repair bool, event func(wire.VerifyEvent)) (*wire.VerifyResult, error) {
	res := &wire.VerifyResult{Bad: []wire.BadObject{}}
	var last time.Time
	bad, err := c.Store.Check(ctx, table, func(done, total int64) {
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
		c.Log.Warn("object is damaged or missing", "digest", b.Digest, "problem", b.Problem, "repair", repair)
	}
	if res.Snapshots, err = c.Snapshots.Verify(ctx, table); err != nil {
		return nil, err
	}
	res.LeftSnapshots = len(res.Snapshots)
	for _, p := range res.Snapshots {
		c.Log.Warn("snapshot differs from its table", "snapshot", p.Snapshot, "table", p.Table, "path", p.Path, "problem", p.Problem, "repair", repair)
	}
	if !repair || len(bad)+len(res.Snapshots) == 0 {
		return res, nil
	}
	if table == "" {
		if err := c.Snapshots.Forget(ctx); err != nil { // containerd may be down; what is left is reported
			c.Log.Warn("records of snapshots that do not exist stay in containerd", "err", err)
		}
	}
	err = c.repair(ctx, ref, func(t digest.Digest) bool { return table == "" || t == table }, res, event)
	res.Left = 0
	for _, b := range bad {
		if !c.Store.Has(b.Digest) {
			res.Left++
		}
	}
	left, failed := c.Snapshots.Verify(ctx, table)
	if failed == nil {
		res.LeftSnapshots = len(left)
	} else if err == nil {
		err = failed
	}
	return res, err
}

// repairDamaged downloads what tables lack that need damaged or missing objects.
func (c *Care) repairDamaged(ctx context.Context, bad []store.CheckResult) {
	tables, err := c.needing(bad)
	_, end := c.Jobs.Verifying(wire.KindScrub, c.namesOf(tables))
	res := &wire.VerifyResult{Bad: translate.Bad(bad)}
	if err == nil {
		err = c.repair(ctx, remote.Ref{}, func(t digest.Digest) bool { return slices.Contains(tables, t) }, res, func(wire.VerifyEvent) {})
	}
	if err != nil {
		end(fmt.Errorf("%s is damaged or missing, and cannot be downloaded: %w", bad[0].Digest, err))
		return
	}
	c.Log.Info("damaged objects were downloaded again", "digest", bad[0].Digest, "objects", len(bad), "refs", res.Repaired)
	end(nil)
}

// needing returns the tables that need damaged or missing objects: those with a reference, and those of images. That of
// an index is empty.
func (c *Care) needing(bad []store.CheckResult) (tables []digest.Digest, err error) {
	is := map[digest.Digest]bool{}
	for _, b := range bad {
		is[b.Digest] = true
		tables = append(tables, b.Tables...)
	}
	for _, im := range c.Store.Catalog.Images() {
		needs := is[im.Manifest] || is[im.Config]
		if !needs && im.Table != "" {
			missing, err := c.Store.Missing(im.Table)
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
func (c *Care) namesOf(tables []digest.Digest) string {
	var names []string
	for _, t := range tables {
		for _, im := range c.Store.Catalog.ImagesByTable(t) {
			names = append(names, im.Refs...)
		}
	}
	return strings.Join(names, " ")
}

// repair restores missing documents of the images whose table is in a set, repairs the snapshots of res, and downloads
// what tables of the set lack. It continues after an error and returns the first.
func (c *Care) repair(ctx context.Context, ref remote.Ref, in func(table digest.Digest) bool, res *wire.VerifyResult, event func(wire.VerifyEvent)) error {
	resolved, first := c.resolveAgain(ctx, in)
	res.Repaired = append(res.Repaired, resolved...)
	tables, err := c.showAgain(ctx, res)
	if err != nil {
		return err
	}
	if len(res.Bad) > 0 {
		lacking, err := c.lacking(in, res.Bad)
		if err != nil {
			return err
		}
		tables = append(tables, lacking...)
		slices.Sort(tables)
		tables = slices.Compact(tables)
	}
	for _, t := range tables {
		if first != nil && !c.Store.Has(t) {
			continue // what it lacks is unknown; first has the reason
		}
		names, err := c.repairTable(ctx, ref, t, event)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		res.Repaired = append(res.Repaired, names...)
		if err == nil {
			continue
		}
		c.Log.Error("repair", "table", t, "err", err)
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
func (c *Care) resolveAgain(ctx context.Context, in func(table digest.Digest) bool) (names []string, first error) {
	images := c.Store.Catalog.Images()
	for _, im := range images {
		if !in(im.Table) || c.Store.Has(im.Documents()...) {
			continue
		}
		err := c.Jobs.Restore(ctx, im)
		if err == nil {
			names = append(names, im.Refs...)
			continue
		}
		c.Log.Error("repair", "digest", im.Manifest, "err", err)
		if first == nil {
			first = aboutAll(im.Refs, err)
		}
	}
	return names, first
}

// showAgain repairs snapshots from the store, and returns the tables with missing objects.
func (c *Care) showAgain(ctx context.Context, res *wire.VerifyResult) (lacking []digest.Digest, err error) {
	done := map[digest.Digest]bool{"": true} // the table is unknown
	for _, p := range res.Snapshots {
		if done[p.Table] {
			continue
		}
		done[p.Table] = true
		if err := c.Snapshots.Refresh(ctx, p.Table); err != nil {
			c.Log.Warn("snapshots of a model cannot be repaired before something is fetched", "table", p.Table, "err", err)
			lacking = append(lacking, p.Table)
			continue
		}
		images := c.Store.Catalog.ImagesByTable(p.Table)
		for _, im := range images {
			res.Repaired = append(res.Repaired, im.Refs...)
		}
	}
	return lacking, nil
}

// lacking returns the tables of a set that lack something: those with a reference that need an object of bad, and
// those of images. Objects of an evicted model are not missing.
func (c *Care) lacking(in func(table digest.Digest) bool, bad []wire.BadObject) ([]digest.Digest, error) {
	var tables []digest.Digest
	for _, b := range bad {
		tables = append(tables, b.Tables...)
	}
	tables = slices.DeleteFunc(tables, func(t digest.Digest) bool { return !in(t) })
	images := c.Store.Catalog.Images()
	for _, im := range images {
		if im.Table == "" || !in(im.Table) {
			continue
		}
		missing, err := c.Store.Missing(im.Table)
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
func (c *Care) repairTable(ctx context.Context, ref remote.Ref, t digest.Digest, event func(wire.VerifyEvent)) ([]string, error) {
	images := c.Store.Catalog.ImagesByTable(t)
	var names []string
	for _, im := range images {
		names = append(names, im.Refs...)
	}
	sources, err := c.Sources.Wanted(ctx, t, ref)
	if err != nil {
		return nil, err
	}
	err = c.Store.Hydrate(ctx, t, store.HydrateOptions{Sources: sources, Progress: func(ps []store.Progress) {
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
	return names, c.Snapshots.Refresh(ctx, t)
}

// aboutAll prefixes an error with the references of images.
func aboutAll(names []string, err error) error {
	if len(names) == 0 {
		return err
	}
	return wire.About(strings.Join(names, " "), err)
}

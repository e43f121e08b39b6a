package admin

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/store"
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
		res, err = h.check(r.Context(), req, func(e VerifyEvent) { _ = out.send(e) })
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
	if !req.Repair || len(bad) == 0 {
		return res, nil
	}
	err = h.repair(ctx, req.Name, table, res, event)
	return res, err
}

// repair fetches the tables that need what is bad: all, or the one that was asked for by a name. It
// goes on after an error and returns the first.
func (h *Handler) repair(ctx context.Context, name string, only digest.Digest, res *VerifyResult, event func(VerifyEvent)) error {
	tables, err := h.hurt(ctx, only, res.Bad)
	if err != nil {
		return err
	}
	var first error
	for _, t := range tables {
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

package admin

import (
	"context"
	"net/http"
	"slices"
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
		_ = out.send(VerifyEvent{Status: StatusError, Error: Wrap(err)})
		return
	}
	_ = out.send(VerifyEvent{Status: StatusSuccess, Result: res})
}

// check reads what req asks for, and repairs if it says so.
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
	bad, err := h.Store.Check(ctx, table, !req.Repair, func(done, total int64) {
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
	for _, b := range bad {
		h.Log.Warn("object is damaged", "digest", b.Digest, "problem", b.Problem, "taken away", req.Repair)
	}
	if req.Repair {
		res.Repaired, err = h.repair(ctx, bad, event)
	}
	return res, err
}

// repair fetches the tables that need a damaged object.
func (h *Handler) repair(ctx context.Context, bad []store.CheckResult, event func(VerifyEvent)) ([]string, error) {
	var tables []digest.Digest
	for _, b := range bad {
		tables = append(tables, b.Tables...)
	}
	slices.Sort(tables)
	var names []string
	for _, t := range slices.Compact(tables) {
		images, err := h.Store.ImagesByTable(ctx, t)
		if err != nil {
			return names, err
		}
		var fetchers []store.Fetcher
		for _, im := range images {
			fetchers = append(fetchers, h.Fetchers(im)...)
		}
		err = h.Store.Hydrate(ctx, t, store.HydrateOptions{Fetchers: fetchers, Progress: func(ps []store.Progress) {
			e := VerifyEvent{Status: "repairing"}
			for _, p := range ps {
				e.Total += p.Total
				e.Completed += p.Done
			}
			event(e)
		}})
		if err != nil {
			return names, err
		}
		if err := h.Repaired(ctx, t); err != nil {
			return names, err
		}
		for _, im := range images {
			names = append(names, im.Refs...)
		}
	}
	return names, nil
}

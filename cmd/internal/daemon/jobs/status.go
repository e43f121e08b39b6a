package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/opencontainers/go-digest"
)

// containerd lists a pull that waits for a table, until end is called.
func (js *Jobs) containerd(ctx context.Context, table digest.Digest) (end func(error)) {
	ended := js.watch(&listed{Job: wire.Job{Kind: wire.KindContainerd, Ref: js.nameOf(table), Table: table, Waiting: 1}})
	counted := js.Metrics.Pull(wire.KindContainerd)
	return func(err error) {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			ended(&wire.Error{Code: "canceled", Message: "its client has gone"})
		} else {
			ended(err)
		}
		if err == nil {
			js.List.mu.Lock()
			delete(js.names, table)
			js.List.mu.Unlock()
		}
		format := ""
		if t, terr := js.Store.Table(table); terr == nil {
			format = t.Origin.Format
		}
		counted(format, err)
	}
}

// Verifying lists a verification, a KindVerify or KindScrub, of the model called name, or of all models if name is
// empty. The caller reports its progress in bytes, and its end.
func (js *Jobs) Verifying(kind wire.Kind, name string) (progress func(done, total int64), end func(error)) {
	w := &listed{Job: wire.Job{Kind: kind, Ref: name}}
	if kind == wire.KindVerify {
		w.Waiting = 1
	}
	return func(done, total int64) {
		js.List.change(func() { w.Completed, w.Total, w.Rate = done, total, w.rate.add(time.Now(), done) })
	}, js.watch(w)
}

// watch lists w, which Jobs does not run, until its end.
func (js *Jobs) watch(w *listed) (end func(error)) {
	js.List.change(func() { js.List.add(w) })
	return func(err error) { js.List.change(func() { js.List.end(w, err) }) }
}

// leave ends the wait of a client for a job.
func (js *Jobs) leave(j *job) { js.List.change(func() { j.Waiting-- }) }

// Status returns the work of the daemon.
func (js *Jobs) Status(ctx context.Context) wire.Status {
	running, ended := js.List.jobs()
	work := js.Store.Work()
	for i := range running {
		js.measure(ctx, &running[i], work)
	}
	later, _ := js.List.jobs() // work has the downloads of jobs that have begun meanwhile
	for _, w := range work {
		j := wire.Job{
			Kind: wire.KindAbandoned, Table: w.Table, Started: w.Started, Total: w.Total, Completed: w.Done, Rate: w.Rate, Waiting: w.Waiting, Ends: w.Ends, Limit: string(w.Limit), Ordered: w.Ordered,
		}
		if w.Waiting > 0 {
			if downloads(running, w.Table) || downloads(later, w.Table) {
				continue
			}
			j.Kind = wire.KindRepair
		}
		running = append(running, j)
	}
	for i, j := range running {
		for _, e := range js.Store.Views.Early(j.Table) {
			running[i].Reads += e.Reads
		}
	}
	slices.SortStableFunc(running, byStart)
	s := wire.Status{Jobs: append(append([]wire.Job{}, running...), ended...), Paused: js.Store.Paused()}
	for i, j := range s.Jobs {
		if j.Ref == "" && j.Table != "" {
			s.Jobs[i].Ref = js.nameOf(j.Table)
		}
	}
	js.forget(s.Jobs)
	if m := js.Lazy(); m != nil {
		s.WaitingReads = m.Stats().Waiting
	}
	return s
}

// downloads reports whether a job downloads a table.
func downloads(jobs []wire.Job, table digest.Digest) bool {
	return slices.ContainsFunc(jobs, func(j wire.Job) bool { return j.Table == table })
}

// measure sets what limits a job, and its progress unless it reports that itself, from the download it waits for: the
// fastest one, if there are several. They stay as they are before the download begins, and between two attempts; the
// rest of a model then has the progress of its table.
func (js *Jobs) measure(ctx context.Context, j *wire.Job, work []store.Work) {
	var of store.Work
	for _, w := range work {
		if w.Table == j.Table && w.Waiting > 0 && (of.Table == "" || w.Rate > of.Rate || w.Rate == of.Rate && w.Done > of.Done) {
			of = w
		}
	}
	j.Limit, j.Ordered = string(of.Limit), of.Ordered
	switch {
	case j.Kind != wire.KindContainerd && j.Kind != wire.KindBackground:
	case of.Table != "":
		j.Total, j.Completed, j.Rate = of.Total, of.Done, of.Rate
	case j.Kind == wire.KindBackground && j.Total == 0: // a job that heals a model has reported its own
		if st, err := js.Store.State(ctx, j.Table); err == nil {
			j.Total, j.Completed = st.Total, st.Done
		}
	}
}

// nameOf returns a reference of the images of a table or, if they were removed, one that they had.
// Otherwise it returns the digest of the table.
func (js *Jobs) nameOf(table digest.Digest) string {
	images := js.Sources.images(table)
	js.List.mu.Lock()
	defer js.List.mu.Unlock()
	name := ""
	for _, im := range images {
		name = modelname.Label(im, remote.Ref{})
	}
	if name == "" {
		return cmp.Or(js.names[table], table.String())
	}
	if js.names == nil {
		js.names = map[digest.Digest]string{}
	}
	js.names[table] = name
	return name
}

// forget drops the names of tables without a job.
func (js *Jobs) forget(jobs []wire.Job) {
	js.List.mu.Lock()
	defer js.List.mu.Unlock()
	maps.DeleteFunc(js.names, func(t digest.Digest, _ string) bool { return !downloads(jobs, t) })
}

// heals reports whether a job downloads what a model has lost that is still in use.
func (js *Jobs) heals(j *job) bool {
	return j.Kind == wire.KindBackground && len(js.Store.Catalog.RefsOf(j.Table)) > 0
}

// errStopped is why jobs end that Stop cancels.
var errStopped = fmt.Errorf("stopped by \"ballast rm\": %w", context.Canceled)

// Stop stops the downloads of a table, if it is not empty, and of references, that no client waits
// for, and returns their number. A reference of a table that has other images counts only for jobs.
func (js *Jobs) Stop(ctx context.Context, table digest.Digest, refs ...string) (n int, err error) {
	var ending []*job
	js.List.mu.Lock()
	for j := range js.running {
		if j.Waiting == 0 && (slices.Contains(refs, j.Ref) || table != "" && j.Table == table) && !js.heals(j) {
			j.closed = true
			j.cancel(errStopped)
			ending = append(ending, j)
		}
	}
	js.List.mu.Unlock()
	for _, j := range ending {
		if err := js.over(ctx, j); err != nil {
			return n, err
		}
		if j.err != nil { // not changed after the end
			n++
		}
	}
	for _, w := range js.Store.Work() {
		if w.Waiting > 0 || w.Table != table && (len(js.Sources.images(w.Table)) > 0 || !slices.Contains(refs, js.nameOf(w.Table))) {
			continue
		}
		m, err := js.Store.Abandon(ctx, w.Table)
		if err != nil {
			return n, err
		}
		if !slices.ContainsFunc(ending, func(j *job) bool { return j.Table == w.Table }) {
			n += m
		}
	}
	if n > 0 {
		js.Log.Info("downloads without a client stopped", "ref", strings.Join(refs, " "), "table", table, "downloads", n)
	}
	return n, nil
}

// over waits for the end of a job.
func (js *Jobs) over(ctx context.Context, j *job) error {
	for {
		js.List.mu.Lock()
		done, changed := j.done, j.changed
		js.List.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

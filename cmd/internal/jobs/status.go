package jobs

import (
	"context"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/opencontainers/go-digest"
)

// A watched is work outside of Jobs: a pull of containerd, or a verification. The mutex of Jobs
// guards it.
type watched struct {
	api.Job
	first int64 // bytes present at its start, -1 if not known yet
}

// containerd lists a pull that waits for a table, until end is called.
func (js *Jobs) containerd(ctx context.Context, table digest.Digest) (end func(error)) {
	w := &watched{api.Job{Kind: api.KindContainerd, Table: table, Waiting: 1}, -1}
	if there, err := js.Store.Presence(ctx, table); err == nil { // otherwise its table is being downloaded
		w.first = there.Done
	}
	ended, counted := js.watch(w), js.Metrics.Pull(api.KindContainerd)
	return func(err error) {
		ended(err)
		format := ""
		if t, terr := js.Store.Table(context.WithoutCancel(ctx), table); terr == nil {
			format = t.Origin.Format
		}
		counted(format, err)
	}
}

// Verifying lists a verification of the model called name, or of all models if name is empty. The
// caller reports its progress in bytes, and its end.
func (js *Jobs) Verifying(name string) (progress func(done, total int64), end func(error)) {
	w := &watched{Job: api.Job{Kind: api.KindVerify, Ref: name, Waiting: 1}}
	return func(done, total int64) {
		js.mu.Lock()
		defer js.mu.Unlock()
		w.Completed, w.Total = done, total
	}, js.watch(w)
}

// watch lists w until its end.
func (js *Jobs) watch(w *watched) (end func(error)) {
	w.Started = time.Now()
	js.mu.Lock()
	defer js.mu.Unlock()
	if js.watched == nil {
		js.watched = map[*watched]bool{}
	}
	js.watched[w] = true
	return func(err error) {
		js.mu.Lock()
		defer js.mu.Unlock()
		delete(js.watched, w)
		js.record(w.Job, err)
	}
}

// wait adds n to the number of clients that follow a job.
func (js *Jobs) wait(j *job, n int) {
	js.mu.Lock()
	defer js.mu.Unlock()
	j.Waiting += n
}

// list returns the running jobs, and the ended ones, newest first.
func (js *Jobs) list() (running, ended []api.Job) {
	js.mu.Lock()
	defer js.mu.Unlock()
	for _, j := range js.running {
		running = append(running, j.Job)
	}
	for w := range js.watched {
		if w.Kind == api.KindContainerd {
			w.measure(js.Store)
		}
		w.Rate = average(w.Completed-max(w.first, 0), w.Started)
		running = append(running, w.Job)
	}
	ended = slices.Clone(js.ended)
	slices.Reverse(ended)
	return running, ended
}

// measure updates the progress of a pull of containerd.
func (w *watched) measure(s *store.Store) {
	ps, ok := s.Hydrating(w.Table)
	if !ok {
		return // it has not begun, or is about to end
	}
	w.Total, w.Completed = 0, 0
	for _, p := range ps {
		w.Total += p.Total
		w.Completed += p.Done
	}
	if w.first < 0 {
		w.first = w.Completed
	}
}

// average returns the rate, per second, of n bytes since a time.
func average(n int64, since time.Time) int64 {
	return int64(float64(max(n, 0)) / max(time.Since(since).Seconds(), 1e-3))
}

// list returns the work on the rest of models, once for each table.
func (b *Background) list(ctx context.Context) (out []api.Job) {
	b.mu.Lock()
	oldest := map[digest.Digest]fetching{}
	for t, f := range b.running {
		if old, ok := oldest[t.table]; !ok || f.started.Before(old.started) {
			oldest[t.table] = *f
		}
	}
	b.mu.Unlock()
	for table, f := range oldest {
		j := api.Job{Kind: api.KindBackground, Table: table, Started: f.started}
		if f.failed != nil {
			j.Error = api.Wrap(f.failed)
		}
		if p, err := b.Store.Presence(ctx, table); err == nil {
			j.Total, j.Completed = p.Total, p.Done
		}
		if _, ok := b.Store.Hydrating(table); ok {
			j.Rate = average(j.Completed-f.first, f.started)
		}
		out = append(out, j)
	}
	return out
}

// Status returns the work of the daemon.
func (js *Jobs) Status(ctx context.Context) api.Status {
	running, ended := js.list()
	running = append(running, js.Background.list(ctx)...)
	slices.SortStableFunc(running, func(a, b api.Job) int { return a.Started.Compare(b.Started) })
	s := api.Status{Jobs: append(append([]api.Job{}, running...), ended...), Paused: js.Store.Paused()}
	for i, j := range s.Jobs {
		if j.Ref != "" || j.Table == "" {
			continue
		}
		s.Jobs[i].Ref = j.Table.String()
		for _, im := range js.Sources.images(ctx, j.Table) {
			s.Jobs[i].Ref = api.Label(im, remote.Ref{})
		}
	}
	if m := js.Lazy(); m != nil {
		s.WaitingReads = m.Stats().Waiting
	}
	return s
}

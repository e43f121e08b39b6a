package daemon

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/store"
	"github.com/opencontainers/go-digest"
)

// kindVerify is the kind of a job that compares objects with their digests; the others are who asked for a model.
const kindVerify = "verify"

// watched is work that others do: pulls of containerd, and verifications. The mutex of pulls guards it.
type watched struct {
	job   admin.Job
	first int64 // bytes that were there at its start, -1 if that is not known yet
}

// containerd takes note of a pull that containerd waits for.
func (p *pulls) containerd(ctx context.Context, table digest.Digest) (end func(error)) {
	w := &watched{admin.Job{Kind: byContainerd, Table: table, Waiting: 1}, -1}
	if there, err := p.store.Presence(ctx, table); err == nil { // else its table is on its way
		w.first = there.Done
	}
	return p.watch(w)
}

// verifying takes note of a verification: see admin.Handler.Verifying.
func (p *pulls) verifying(name string) (progress func(done, total int64), end func(error)) {
	w := &watched{job: admin.Job{Kind: kindVerify, Ref: name, Waiting: 1}}
	return func(done, total int64) {
		p.mu.Lock()
		defer p.mu.Unlock()
		w.job.Completed, w.job.Total = done, total
	}, p.watch(w)
}

// watch lists w until its end.
func (p *pulls) watch(w *watched) (end func(error)) {
	w.job.Started = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.watched == nil {
		p.watched = map[*watched]bool{}
	}
	p.watched[w] = true
	return func(err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.watched, w)
		w.job.Ended = time.Now()
		if err != nil {
			w.job.Error = admin.Wrap(err)
		}
		p.keep(w.job)
	}
}

// keep remembers a job that has ended. It needs the mutex.
func (p *pulls) keep(j admin.Job) {
	j.Rate, j.Waiting = 0, 0
	p.ended = append(p.ended, j)
	if len(p.ended) > keepEnded {
		p.ended = slices.Delete(p.ended, 0, len(p.ended)-keepEnded)
	}
}

// wait counts who follows a pull.
func (p *pulls) wait(pl *pull, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pl.job.Waiting += n
}

// about says which table a pull is of.
func (p *pulls) about(pl *pull, table digest.Digest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pl.job.Table = table
}

// jobs returns those that run, the oldest first, and those that ended, the newest first.
func (p *pulls) jobs() (running, ended []admin.Job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pl := range p.running {
		running = append(running, pl.job)
	}
	for w := range p.watched {
		if w.job.Kind == byContainerd {
			w.measure(p.store)
		}
		w.job.Rate = average(w.job.Completed-max(w.first, 0), w.job.Started)
		running = append(running, w.job)
	}
	for _, j := range slices.Backward(p.ended) {
		ended = append(ended, j)
	}
	return running, ended
}

// measure finds out how far a pull of containerd is.
func (w *watched) measure(s *store.Store) {
	ps, ok := s.Hydrating(w.job.Table)
	if !ok {
		return // it has not begun, or is about to end
	}
	w.job.Total, w.job.Completed = sum(ps)
	if w.first < 0 {
		w.first = w.job.Completed
	}
}

// sum adds up the progress of all targets.
func sum(ps []store.Progress) (total, done int64) {
	for _, p := range ps {
		total += p.Total
		done += p.Done
	}
	return total, done
}

// average is the rate of n bytes since a moment, a second.
func average(n int64, since time.Time) int64 {
	return int64(float64(max(n, 0)) / max(time.Since(since).Seconds(), 1e-3))
}

// attempted notes how the last attempt of w ended; with nil one begins.
func (b *background) attempted(w *bringing, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w.failed = err
}

// found notes how much of a table was there when w began.
func (b *background) found(ctx context.Context, w *bringing, table digest.Digest) {
	there, err := b.store.Presence(ctx, table)
	if err != nil {
		return // Hydrate says so
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	w.first = there.Done
}

// jobs returns the work on the rest of models, for each table once.
func (b *background) jobs(ctx context.Context) (out []admin.Job) {
	b.mu.Lock()
	oldest := map[digest.Digest]bringing{}
	for t, w := range b.running {
		if old, ok := oldest[t.table]; !ok || w.started.Before(old.started) {
			oldest[t.table] = *w
		}
	}
	b.mu.Unlock()
	for table, w := range oldest {
		j := admin.Job{Kind: byBackground, Table: table, Started: w.started}
		if w.failed != nil {
			j.Error = admin.Wrap(w.failed)
		}
		if p, err := b.store.Presence(ctx, table); err == nil {
			j.Total, j.Completed = p.Total, p.Done
		}
		if _, ok := b.store.Hydrating(table); ok {
			j.Rate = average(j.Completed-w.first, w.started)
		}
		out = append(out, j)
	}
	return out
}

// status says what the daemon does.
func (d *Daemon) status(ctx context.Context) admin.Status {
	running, ended := d.pulls.jobs()
	running = append(running, d.background.jobs(ctx)...)
	s := admin.Status{Jobs: append(append([]admin.Job{}, running...), ended...), Paused: d.store.Paused()}
	slices.SortStableFunc(s.Jobs[:len(running)], func(a, b admin.Job) int { return a.Started.Compare(b.Started) })
	for i, j := range s.Jobs {
		if j.Ref != "" || j.Table == "" {
			continue
		}
		s.Jobs[i].Ref = j.Table.String()
		for _, im := range d.images(ctx, j.Table) {
			s.Jobs[i].Ref = cmp.Or(admin.Label(im, ""), s.Jobs[i].Ref)
		}
	}
	if m := d.lazy.Load(); m != nil {
		s.WaitingReads = m.Stats().Waiting
	}
	return s
}

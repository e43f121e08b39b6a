package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// keepEnded is how many prefetches that have ended are remembered.
const keepEnded = 50

// errStopping is why prefetches end when the daemon stops.
var errStopping = fmt.Errorf("ballastd stops, what it fetched is kept: %w", errdefs.ErrAborted)

// pulls are the prefetches, the imports and the hydrations. They belong to the daemon: who asked for one may go,
// and whoever asks for the same reference in the same way joins it.
type pulls struct {
	convert func(ctx context.Context, ref remote.Ref) (store.Image, error)
	sources func(im store.Image, names ...string) []transfer.Source
	admit   func(ctx context.Context, c registry.Candidate) (pending bool, err error)
	store   *store.Store
	metrics *metrics
	log     *slog.Logger

	work sync.WaitGroup

	mu       sync.Mutex // guards what follows
	stopping bool
	running  map[string]*pull // by key
	watched  map[*watched]bool
	ended    []admin.Job // oldest first
}

// A pull is one prefetch, import or hydration. The mutex of pulls guards it.
type pull struct {
	key    string // tells it from others that run
	by     string // who asked, not byContainerd
	ref    string
	cancel context.CancelCauseFunc
	pin    pinWish
	job    admin.Job

	events  map[digest.Digest]admin.Event // by blob
	order   []digest.Digest
	changed chan struct{} // closed when events or the end changed
	done    bool
	image   store.Image
	linked  store.Linked // of an import
	err     error
}

// A pinWish is what those who asked want of the pin: the longest wins.
type pinWish struct {
	wanted  bool
	expires time.Time // zero: never
}

func (p *pinWish) add(r admin.PrefetchRequest, now time.Time) {
	if r.NoPin {
		return
	}
	var expires time.Time
	if r.TTL > 0 {
		expires = now.Add(r.TTL)
	}
	if !p.wanted || expires.IsZero() || !p.expires.IsZero() && expires.After(p.expires) {
		p.expires = expires
	}
	p.wanted = true
}

// run waits until ctx ends, then ends all prefetches.
func (p *pulls) run(ctx context.Context) error {
	<-ctx.Done()
	p.mu.Lock()
	p.stopping = true
	for _, pl := range p.running {
		pl.cancel(errStopping)
	}
	p.mu.Unlock()
	p.work.Wait()
	return nil
}

// prefetch fetches a model, or joins who does, and calls event with what has changed until
// it is done, ctx ends or event returns an error. The work goes on in any case.
func (p *pulls) prefetch(ctx context.Context, r admin.PrefetchRequest, event func([]admin.Event) error) (store.Image, error) {
	ref, err := resolve.ParseRef(r.Ref)
	if err != nil {
		return store.Image{}, err
	}
	if ref.URL != "" {
		r.Ref = ref.Name() // which goes into logs, pins and the list of jobs
	}
	pl, err := p.join(ctx, byPrefetch, r, func(ctx context.Context, pl *pull) (store.Image, error) { return p.pull(ctx, pl, ref) })
	if err != nil {
		return store.Image{}, err
	}
	return p.follow(ctx, pl, event)
}

// follow calls event with what has changed in a pull.
func (p *pulls) follow(ctx context.Context, pl *pull, event func([]admin.Event) error) (store.Image, error) {
	p.wait(pl, 1)
	defer p.wait(pl, -1)
	sent := map[digest.Digest]admin.Event{}
	if err := event([]admin.Event{{Status: admin.StatusResolving, Ref: pl.ref}}); err != nil {
		return store.Image{}, err
	}
	for {
		p.mu.Lock()
		news := pl.news(sent)
		done, im, err, changed := pl.done, pl.image, pl.err, pl.changed
		p.mu.Unlock()
		if len(news) > 0 {
			if err := event(news); err != nil {
				return store.Image{}, err
			}
		}
		if done {
			return im, err
		}
		select {
		case <-ctx.Done():
			return store.Image{}, ctx.Err()
		case <-changed:
		}
	}
}

// news returns the events that sent does not have yet, and puts them there.
func (pl *pull) news(sent map[digest.Digest]admin.Event) []admin.Event {
	var out []admin.Event
	for _, d := range pl.order {
		if e := pl.events[d]; sent[d] != e {
			sent[d] = e
			out = append(out, e)
		}
	}
	return out
}

// join returns the pull of a reference, which it starts if there is none: bring does the work.
func (p *pulls) join(ctx context.Context, by string, r admin.PrefetchRequest, bring func(context.Context, *pull) (store.Image, error)) (*pull, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopping {
		return nil, errStopping
	}
	now, key := time.Now(), by+" "+r.Ref
	if pl := p.running[key]; pl != nil {
		pl.pin.add(r, now)
		return pl, nil
	}
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	pl := &pull{
		key: key, by: by, ref: r.Ref, cancel: cancel, job: admin.Job{Kind: by, Ref: r.Ref, Started: now},
		events: map[digest.Digest]admin.Event{}, changed: make(chan struct{}),
	}
	pl.pin.add(r, now)
	if p.running == nil {
		p.running = map[string]*pull{}
	}
	p.running[key] = pl
	p.metrics.active.WithLabelValues(by).Inc()
	p.work.Go(func() {
		defer cancel(nil)
		im, err := bring(work, pl)
		if cause := context.Cause(work); err != nil && cause != nil {
			err = cause
		}
		p.end(pl, im, err)
	})
	return pl, nil
}

// pull converts, fetches and pins.
func (p *pulls) pull(ctx context.Context, pl *pull, ref remote.Ref) (store.Image, error) {
	im, err := p.resolve(ctx, ref)
	if err != nil {
		return store.Image{}, err
	}
	p.about(pl, im.Table)
	rates := map[digest.Digest]*rate{}
	err = p.store.Hydrate(ctx, im.Table, store.HydrateOptions{
		Sources:  p.sources(im, ref.Name()),
		Progress: func(ps []store.Progress) { p.progress(pl, ps, rates) },
	})
	if err != nil {
		return store.Image{}, err
	}
	if _, err := p.admit(ctx, registry.Candidate{Table: im.Table, Names: []string{ref.Name()}, Complete: true, AsNode: true}); err != nil {
		return store.Image{}, err
	}
	return im, p.pinFor(ctx, pl, im, ref)
}

// resolve finds out what image a reference stands for.
func (p *pulls) resolve(ctx context.Context, ref remote.Ref) (store.Image, error) {
	im, err := p.convert(ctx, ref)
	if errors.Is(err, convert.ErrNotModel) {
		err = fmt.Errorf("%w; containerd pulls images itself: %w", err, errdefs.ErrNotImplemented)
	}
	return im, err
}

// pinFor makes the pin that those who asked want, unless there is one that holds longer. Who
// joins from here on starts a prefetch anew, which finds everything there.
func (p *pulls) pinFor(ctx context.Context, pl *pull, im store.Image, ref remote.Ref) error {
	p.mu.Lock()
	delete(p.running, pl.key)
	pin := pl.pin
	p.mu.Unlock()
	if !pin.wanted {
		return nil
	}
	name := admin.PinName(admin.Label(im, pl.ref))
	old, err := p.store.Ref(ctx, name)
	switch {
	case err != nil && !errdefs.IsNotFound(err):
		return err
	case err == nil && old.Table == im.Table && (old.Expires.IsZero() || !pin.expires.IsZero() && old.Expires.After(pin.expires)):
		return nil
	}
	return admin.AddPin(ctx, p.store, name, im.Table, pin.expires, ref)
}

// progress takes what the store says about a prefetch.
func (p *pulls) progress(pl *pull, ps []store.Progress, rates map[digest.Digest]*rate) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	pl.job.Total, pl.job.Completed, pl.job.Rate = 0, 0, 0
	for _, s := range ps {
		r := rates[s.Blob]
		if r == nil {
			r = &rate{}
			rates[s.Blob] = r
			pl.order = append(pl.order, s.Blob)
		}
		pl.events[s.Blob] = admin.Event{
			Status: s.State, Digest: s.Blob, File: s.Name, Total: s.Total, Completed: s.Done, Rate: r.add(now, s.Done),
		}
		pl.job.Total += s.Total
		pl.job.Completed += s.Done
		if s.State == "downloading" {
			pl.job.Rate += pl.events[s.Blob].Rate
		}
	}
	pl.announce()
}

// announce wakes all who follow. It needs the mutex.
func (pl *pull) announce() {
	close(pl.changed)
	pl.changed = make(chan struct{})
}

// end records how a prefetch ended.
func (p *pulls) end(pl *pull, im store.Image, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running[pl.key] == pl {
		delete(p.running, pl.key)
	}
	pl.done, pl.image, pl.err = true, im, err
	pl.job.Ended = time.Now()
	dur := pl.job.Ended.Sub(pl.job.Started)
	if err != nil {
		pl.job.Error = admin.Wrap(err)
	}
	p.keep(pl.job)
	pl.announce()
	p.metrics.active.WithLabelValues(pl.by).Dec()
	p.metrics.pulled(pl.by, im.Origin.Format, dur, err)
	switch {
	case err == nil:
		p.log.Info("model brought", "by", pl.by, "ref", pl.ref, "digest", im.Manifest, "bytes", pl.job.Total, "dur", dur.Round(time.Millisecond))
	case errors.Is(err, errStopping):
		p.log.Info("interrupted", "by", pl.by, "ref", pl.ref, "bytes", pl.job.Completed)
	default:
		p.log.Error("model was not brought", "by", pl.by, "ref", pl.ref, "dur", dur.Round(time.Millisecond), "err", err)
	}
}

// rateOver is the time that a rate is taken over.
const rateOver = 2 * time.Second

// A rate is how fast a number grows.
type rate struct {
	at    time.Time
	n     int64
	value float64 // a second
}

// add takes the number at a moment and returns how fast it grows, a second.
func (r *rate) add(now time.Time, n int64) int64 {
	dt := now.Sub(r.at)
	switch {
	case r.at.IsZero():
		r.at, r.n = now, n
	case dt > 0:
		// The older the last value, the less it counts.
		w := min(1, float64(dt)/float64(rateOver))
		r.value += w * (float64(n-r.n)/dt.Seconds() - r.value)
		r.at, r.n = now, n
	}
	return max(0, int64(r.value))
}

package jobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/metrics"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/snapshotter/lazy"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// errStopping is why jobs end when the daemon stops.
var errStopping = fmt.Errorf("ballastd stops, what it fetched is kept: %w", errdefs.ErrAborted)

// A Facade converts models and returns their sources: a *registry.Handler.
type Facade interface {
	Convert(ctx context.Context, ref remote.Ref) (store.Image, error)
	ConvertAs(ctx context.Context, ref remote.Ref, as remote.Credentials) (store.Image, error)
	ServedToAll(ctx context.Context, ref remote.Ref, im store.Image) error
	Hold(ref remote.Ref, d digest.Digest) (release func())
	Restore(ctx context.Context, ref remote.Ref, im store.Image) error
	Import(ctx context.Context, ref remote.Ref, blobs registry.Blobs, desc ocispec.Descriptor, o registry.ImportOptions) (*registry.Import, error)
	Sources(im store.Image, names ...string) []transfer.Source
	NodeSources(im store.Image, names ...string) []transfer.Source
	Admit(ctx context.Context, c registry.Candidate) (pending bool, err error)
}

// Jobs runs all work on models. The exported fields are set before the first call.
//
// The daemon owns the work: a client that follows a job can disconnect, and a client that requests
// the same model in the same way joins the job.
type Jobs struct {
	Store      *store.Store
	Facade     Facade
	Sources    *Sources
	Background *Background
	List       *List              // the same as of Background
	Lazy       func() *lazy.Mount // nil: models are shown when they are complete
	Metrics    *metrics.Metrics
	Temp       string // directory on the file system of the store for extracted archives
	Log        *slog.Logger

	work sync.WaitGroup

	// List.mu guards the fields below.
	stopping bool
	running  map[*job]bool            // until their end
	lists    map[string]*list         // by name
	names    map[digest.Digest]string // last known references of tables, for images that are removed meanwhile

	pinning sync.Mutex // is held from the look at a pin until a job replaces it
}

// A job is one prefetch, import or download of what a model has lost. The mutex of List guards it.
type job struct {
	listed
	key    string // distinguishes it from other running jobs
	closed bool   // clients with the same wish start another one
	cancel context.CancelCauseFunc
	pin    pinWish
	rate   int64             // of the last client with one; 0: none yet
	limit  *transfer.Limiter // nil: none, or not yet

	counted func(format string, err error) // reports the end to the metrics

	events  map[digest.Digest]wire.Event // by blob
	rates   map[digest.Digest]*rate      // by blob
	order   []digest.Digest
	changed chan struct{} // closed when events or the end changed
	done    bool
	image   store.Image

	imported []wire.Imported
	err      error
}

// A pinWish is the pin that the clients of a job request: the longest one wins.
type pinWish struct {
	wanted  bool
	expires time.Time // zero: never
}

// pinFor returns the pinWish for a pin with the lifetime ttl, without an end if that is zero.
func pinFor(noPin bool, ttl time.Duration) pinWish {
	if noPin || ttl == 0 {
		return pinWish{wanted: !noPin}
	}
	return pinWish{true, time.Now().Add(ttl)}
}

// add extends p to the lifetime of o.
func (p *pinWish) add(o pinWish) {
	if o.wanted && (!p.wanted || o.expires.IsZero() || !p.expires.IsZero() && o.expires.After(p.expires)) {
		*p = o
	}
}

// Run waits until ctx ends, and then ends all jobs.
func (js *Jobs) Run(ctx context.Context) error {
	<-ctx.Done()
	js.List.mu.Lock()
	js.stopping = true
	for j := range js.running {
		j.cancel(errStopping)
	}
	js.List.mu.Unlock()
	js.work.Wait()
	return nil
}

// follow calls event with the changes of a job that the caller has joined.
func (js *Jobs) follow(ctx context.Context, j *job, event func([]wire.Event) error) (store.Image, error) {
	defer js.leave(j)
	sent := map[digest.Digest]wire.Event{}
	for {
		js.List.mu.Lock()
		news := j.news(sent)
		done, im, err, changed := j.done, j.image, j.err, j.changed
		js.List.mu.Unlock()
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

// news returns the events that are not in sent, and adds them to it. There are some at the first
// call: an event without a digest says whether the job has begun, or waits for a limit.
func (j *job) news(sent map[digest.Digest]wire.Event) []wire.Event {
	var out []wire.Event
	whole := wire.Event{Status: wire.StatusResolving, Ref: j.Ref, LimitedBy: j.LimitedBy, Until: j.Until}
	if j.Queued || j.LimitedBy != "" {
		whole.Status = wire.StatusWaiting
	}
	if sent[""] != whole {
		sent[""] = whole
		out = append(out, whole)
	}
	for _, d := range j.order {
		if e := j.events[d]; sent[d] != e {
			sent[d] = e
			out = append(out, e)
		}
	}
	return out
}

// join returns the job of a kind for the model called name, and a key, for which the caller waits from then on: it
// follows it, or leaves it. If there is none, join starts one that runs work.
func (js *Jobs) join(ctx context.Context, kind wire.Kind, name, key string, pin pinWish, work func(context.Context, *job) (store.Image, error)) (*job, error) {
	js.List.mu.Lock()
	defer js.List.mu.Unlock()
	if js.stopping {
		return nil, errStopping
	}
	key = string(kind) + " " + name + key
	for j := range js.running {
		if j.key == key && !j.closed {
			j.pin.add(pin)
			j.Waiting++
			return j, nil
		}
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	j := &job{
		listed: listed{Job: wire.Job{Kind: kind, Ref: name, Waiting: 1}},
		key:    key, pin: pin, cancel: cancel, counted: js.Metrics.Pull(kind),
		events: map[digest.Digest]wire.Event{}, rates: map[digest.Digest]*rate{}, changed: make(chan struct{}),
	}
	if js.running == nil {
		js.running = map[*job]bool{}
	}
	js.running[j] = true
	js.List.add(&j.listed)
	js.work.Go(func() {
		defer cancel(nil)
		im, err := work(ctx, j)
		if cause := context.Cause(ctx); err != nil && cause != nil {
			err = cause
		}
		js.end(j, im, err)
	})
	return j, nil
}

// hydrate downloads the blobs of a table and reports the progress of j.
func (js *Jobs) hydrate(ctx context.Context, j *job, table digest.Digest, o store.HydrateOptions) error {
	js.List.change(func() { j.Table = table })
	if o.Progress == nil {
		o.Progress = func(ps []store.Progress) { js.progress(j, ps) }
	}
	return js.Store.Hydrate(ctx, table, o)
}

// finish checks a complete model against the rules for signatures, and pins it. A model without a name was checked
// when it was shown.
func (js *Jobs) finish(ctx context.Context, j *job, im store.Image, ref remote.Ref) error {
	names := registry.Names(im)
	if ref != (remote.Ref{}) {
		names = []string{ref.Name()}
	}
	if len(names) > 0 {
		if _, err := js.Facade.Admit(ctx, registry.Candidate{Table: im.Table, Names: names, Complete: true, AsNode: true}); err != nil {
			return err
		}
	}
	return js.pin(ctx, j, im, ref)
}

// Convert returns the converted image of a reference, without downloading its model.
func (js *Jobs) Convert(ctx context.Context, ref remote.Ref) (store.Image, error) {
	im, err := js.Facade.Convert(ctx, ref)
	return im, explain(err)
}

// pin creates the pin that the clients of j request, unless an existing one lasts longer. A client
// that joins from here on starts a new job, for which all files are present.
func (js *Jobs) pin(ctx context.Context, j *job, im store.Image, ref remote.Ref) error {
	js.List.mu.Lock()
	j.closed = true
	pin := j.pin
	js.List.mu.Unlock()
	if !pin.wanted {
		return nil
	}
	js.pinning.Lock()
	defer js.pinning.Unlock()
	if err := context.Cause(ctx); err != nil { // what is removed is not pinned again
		return err
	}
	name := modelname.Pin(modelname.Label(im, ref))
	old, err := js.Store.Catalog.Ref(name)
	switch {
	case err != nil && !errdefs.IsNotFound(err):
		return err
	case err == nil && old.Table == im.Table && (old.Expires.IsZero() || !pin.expires.IsZero() && old.Expires.After(pin.expires)):
		return nil
	}
	return AddPin(js.Store, name, im.Table, pin.expires, ref)
}

// AddPin pins a table that was requested by a reference, which becomes its source for later
// downloads. With the zero reference, its sources stay as they are.
func AddPin(s *store.Store, name string, table digest.Digest, expires time.Time, ref remote.Ref) error {
	if ref == (remote.Ref{}) {
		return s.AddRef(name, table, expires)
	}
	return s.AddRef(name, table, expires, ref.Name())
}

// progress records the progress reported by the store.
func (js *Jobs) progress(j *job, ps []store.Progress) {
	now := time.Now()
	js.List.mu.Lock()
	defer js.List.mu.Unlock()
	j.Total, j.Completed, j.Rate = 0, 0, 0
	for _, s := range ps {
		r := j.rates[s.Blob]
		if r == nil {
			r = &rate{}
			j.rates[s.Blob] = r
			j.order = append(j.order, s.Blob)
		}
		e := wire.Event{
			Status: wire.EventStatus(s.State), Digest: s.Blob, File: s.Name, Total: s.Total, Completed: s.Done, Rate: r.add(now, s.Done),
			Registries: s.Registries, Mirrors: s.Mirrors,
		}
		j.events[s.Blob] = e
		j.Total += s.Total
		j.Completed += s.Done
		if e.Status == wire.StatusDownloading {
			j.Rate += e.Rate
		}
	}
	j.announce()
}

// announce wakes all followers of j. The caller holds List.mu.
func (j *job) announce() {
	close(j.changed)
	j.changed = make(chan struct{})
}

// end records how a job ended.
func (js *Jobs) end(j *job, im store.Image, err error) {
	js.List.mu.Lock()
	defer js.List.mu.Unlock()
	delete(js.running, j)
	j.done, j.image, j.err = true, im, err
	dur := js.List.end(&j.listed, err).Round(time.Millisecond)
	j.announce()
	j.counted(im.Origin.Format, err)
	switch {
	case err == nil:
		js.Log.Info("model fetched", "by", j.Kind, "ref", j.Ref, "digest", im.Manifest, "bytes", j.Total, "dur", dur)
	case errors.Is(err, errStopping), errors.Is(err, errStopped):
		js.Log.Info("interrupted", "by", j.Kind, "ref", j.Ref, "bytes", j.Completed)
	default:
		js.Log.Error("model was not fetched", "by", j.Kind, "ref", j.Ref, "dur", dur, "err", err)
	}
}

// rateOver is the time constant of the average of a rate.
const rateOver = 2 * time.Second

// A rate measures the growth of a number.
type rate struct {
	at    time.Time
	n     int64
	value float64 // per second
}

// add adds the number at a time and returns its growth per second.
func (r *rate) add(now time.Time, n int64) int64 {
	dt := now.Sub(r.at)
	switch {
	case r.at.IsZero():
		r.at, r.n = now, n
	case dt > 0:
		// The older the last value is, the less it counts.
		w := min(1, float64(dt)/float64(rateOver))
		r.value += w * (float64(n-r.n)/dt.Seconds() - r.value)
		r.at, r.n = now, n
	}
	return max(0, int64(r.value))
}

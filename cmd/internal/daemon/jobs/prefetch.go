package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/opencontainers/go-digest"
)

// ErrNodeOnly is the error of Request.ForPods.
var ErrNodeOnly = errors.New("only the node has credentials for the model, not its pods")

// A Request requests a model.
type Request struct {
	wire.PrefetchRequest

	// ForPods refuses a model with ErrNodeOnly, before its download, if a pull without credentials is not served. It
	// has no effect with Credentials.
	ForPods bool

	// Credentials are those of a pull secret; nil: those of the node.
	Credentials *remote.Credentials

	// Version is the digest that the tag points to; empty: the registry is asked.
	Version digest.Digest
}

// key distinguishes requests for the same model that are not one job.
func (r *Request) key() string {
	key := ""
	if r.Credentials != nil {
		key += " as " + digest.FromString(r.Credentials.Username+"\x00"+r.Credentials.Secret).String()
	}
	if r.ForPods {
		key += " for pods" // which may be refused what the node may have
	}
	if r.Rate > 0 {
		key += " in list " + r.List
	}
	if r.Version != "" {
		key += " at " + r.Version.String()
	}
	return key
}

// Prefetch downloads the model of a reference, or joins the job that does, and calls event with the
// changes until the job ends, ctx ends or event returns an error. The job continues in any case.
func (js *Jobs) Prefetch(ctx context.Context, ref remote.Ref, r Request, event func([]wire.Event) error) (store.Image, error) {
	name := ref.String()
	if ref.URL != "" {
		name = ref.Name() // for logs, pins and the list of jobs
	}
	return js.fetch(ctx, name, r.key(), ref, &r, event, func(ctx context.Context) (store.Image, []transfer.Source, error) {
		return js.find(ctx, ref, &r)
	})
}

// Rest is Prefetch for a model that the node knows. No registry is asked what a tag points to. ref is the reference
// by which the model was requested, zero if by a digest: then the sources of all its references count, with their
// credentials.
func (js *Jobs) Rest(ctx context.Context, im store.Image, ref remote.Ref, r Request, event func([]wire.Event) error) (store.Image, error) {
	sources, err := js.Sources.Wanted(ctx, im.Table, ref)
	if err != nil {
		return store.Image{}, err
	}
	for view := range js.Store.Views.Early(im.Table) {
		js.Background.Start(view, im.Table, sources) // which retries until it is complete
	}
	name, key := modelname.Label(im, ref), r.key()+" table "+im.Table.String() // not the job that resolves the name
	return js.fetch(ctx, name, key, ref, &r, event, func(context.Context) (store.Image, []transfer.Source, error) {
		return im, sources, nil
	})
}

// fetch downloads the model that find returns, checks it and pins it, or joins the job of that name and key. It calls
// event as Prefetch does.
func (js *Jobs) fetch(ctx context.Context, name, key string, ref remote.Ref, r *Request, event func([]wire.Event) error,
	find func(context.Context) (store.Image, []transfer.Source, error)) (store.Image, error) {
	j, err := js.join(ctx, wire.KindPrefetch, name, key, pinFor(r.NoPin, r.TTL), func(ctx context.Context, j *job) (store.Image, error) {
		limit, done, err := js.turn(ctx, j, r.List, r.Rate)
		if err != nil {
			return store.Image{}, err
		}
		defer done()
		im, sources, err := find(remote.WithPatience(ctx, func(host string, until time.Time) {
			js.List.change(func() { j.LimitedBy, j.Until = host, until; j.announce() })
		}))
		if err != nil {
			return store.Image{}, err
		}
		o := store.HydrateOptions{Sources: sources, Background: limit != nil, Limiter: limit}
		if err := js.hydrate(ctx, j, im.Table, o); err != nil {
			return store.Image{}, err
		}
		return im, js.finish(ctx, j, im, ref)
	})
	if err != nil {
		return store.Image{}, err
	}
	js.setRate(j, r.Rate)
	return js.follow(ctx, j, event)
}

// setRate changes the rate of a job, and of the list with its model, if that is limited or has not begun.
func (js *Jobs) setRate(j *job, rate int64) {
	if rate == 0 {
		return
	}
	js.List.mu.Lock()
	defer js.List.mu.Unlock()
	if j.rate = rate; j.limit != nil {
		j.limit.Set(rate)
	}
}

// maxPrefetches limits the models of a list that are downloaded at the same time. They share the
// connections.
const maxPrefetches = 4

// A list is a list of models that were requested together. The mutex of List guards users.
type list struct {
	turns chan struct{}     // has an element for each model that is being downloaded
	users int               // models that are being downloaded, or wait for that
	limit *transfer.Limiter // with the rate of the last request that has one; or nil
}

// turn waits until a model of the list called name can be downloaded, until done. limit is for a rate that is not
// zero, which the models of a list share.
func (js *Jobs) turn(ctx context.Context, j *job, name string, rate int64) (limit *transfer.Limiter, done func(), err error) {
	js.List.mu.Lock()
	if rate = cmp.Or(j.rate, rate); rate > 0 {
		limit = transfer.NewLimiter(rate)
	}
	if name == "" {
		j.limit = limit
		js.List.mu.Unlock()
		return limit, func() {}, nil
	}
	l := js.lists[name]
	if l == nil {
		l = &list{turns: make(chan struct{}, maxPrefetches)}
		if js.lists == nil {
			js.lists = map[string]*list{}
		}
		js.lists[name] = l
	}
	l.users++
	if limit != nil {
		if l.limit == nil {
			l.limit = limit
		}
		l.limit.Set(rate)
		limit = l.limit
	}
	j.limit = limit
	leave := func() {
		js.List.mu.Lock()
		defer js.List.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(js.lists, name)
		}
	}
	done = func() { <-l.turns; leave() }
	select {
	case l.turns <- struct{}{}:
		js.List.mu.Unlock()
		return limit, done, nil
	default:
	}
	j.Queued = true
	j.announce()
	js.List.mu.Unlock()
	select {
	case l.turns <- struct{}{}:
	case <-ctx.Done():
		leave()
		return nil, nil, ctx.Err()
	}
	js.List.mu.Lock()
	defer js.List.mu.Unlock()
	j.Queued = false
	j.announce()
	return limit, done, nil
}

// find returns the model of a reference, and its sources.
func (js *Jobs) find(ctx context.Context, ref remote.Ref, r *Request) (store.Image, []transfer.Source, error) {
	get, sources := js.Facade.Convert, js.Facade.NodeSources
	if r.Credentials != nil {
		sources = js.Facade.Sources
		get = func(ctx context.Context, ref remote.Ref) (store.Image, error) {
			return js.Facade.ConvertAs(ctx, ref, *r.Credentials)
		}
	}
	if r.Version != "" {
		defer js.Facade.Hold(ref, r.Version)()
	}
	im, err := get(ctx, ref)
	if err != nil {
		return im, nil, explain(err)
	}
	if r.ForPods && r.Credentials == nil {
		if err := js.Facade.ServedToAll(ctx, ref, im); err != nil {
			return im, nil, fmt.Errorf("%w: name a pull secret, or add %s to upstream.share_credentials of the node: %w", ErrNodeOnly, ref.Host, err)
		}
	}
	return im, sources(im, ref.Name()), nil
}

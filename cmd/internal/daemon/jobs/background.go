package jobs

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// The limits of the pause between two attempts to download the rest of a model.
const (
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
)

// readerTime is the longest pause between showing a model and downloading its rest: its containers start, without
// sharing the machine and the network with the download, until the first of them reads.
const readerTime = time.Second

// referredEvery is the interval between checks whether a model is still referenced.
const referredEvery = 5 * time.Second

// Background downloads the rest of models that are shown before they are complete. The exported
// fields are set before the first call.
//
//	Start → fetching ──complete──▶ end
//	           │ ▲ └──not needed──▶ end
//	           ▼ │
//	        waiting, twice as long each time
type Background struct {
	Store   *store.Store
	Sources func(ctx context.Context, view string, table digest.Digest) ([]transfer.Source, error)
	Shows   func(store.Ref) bool   // reports whether a snapshot shows its table
	View    func(store.Ref) string // the view in which it does

	// Whole reports whether no byte of a table may be read before its whole file; nil means of no table.
	// It is for models that were shown complete and have lost files since.
	Whole func(table digest.Digest) (bool, error)

	// Order looks for the order in which a table is read, where its sources are; nil: nowhere.
	Order func(ctx context.Context, table digest.Digest, sources []transfer.Source) (filetable.Order, error)

	Ended func() // called when the work on a table has ended; may be nil
	List  *List
	Log   *slog.Logger

	work sync.WaitGroup

	mu      sync.Mutex      // guards the fields below
	ctx     context.Context // of Begin
	over    bool            // nothing more is started
	running map[task]*fetching
}

// A fetching is the work on a task.
type fetching struct {
	listed               // has the error of the last attempt, until the next one runs
	again  chan struct{} // a send ends a pause
}

// A task is a table to download for a view, from given sources. A request with other sources is a
// separate task and does not wait for this one: the store lets both work on the same files.
type task struct {
	Shown
	sources string // the keys of the sources
}

// Shown is a table that is shown in a view before it is complete.
type Shown struct {
	view  string
	table digest.Digest
}

func newTask(t Shown, sources []transfer.Source) task {
	var keys []string
	for _, s := range sources {
		keys = append(keys, s.Key())
	}
	return task{t, strings.Join(keys, "\n")}
}

// Begin allows work until ctx ends, and returns a function that waits for the end of the work.
func (b *Background) Begin(ctx context.Context) (wait func() error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ctx = ctx
	return func() error {
		<-ctx.Done()
		b.mu.Lock()
		b.over = true
		b.mu.Unlock()
		b.work.Wait()
		return nil
	}
}

// Start starts the download of a table. If the same task already runs, its next attempt starts at
// once.
func (b *Background) Start(view string, table digest.Digest, sources []transfer.Source) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ctx == nil || b.over {
		return
	}
	t := newTask(Shown{view, table}, sources)
	if f, ok := b.running[t]; ok {
		select {
		case f.again <- struct{}{}:
		default: // already signalled
		}
		return
	}
	if b.running == nil {
		b.running = map[task]*fetching{}
	}
	f := &fetching{listed: listed{Job: wire.Job{Kind: wire.KindBackground, Table: table}, rest: true}, again: make(chan struct{}, 1)}
	b.running[t] = f
	b.List.change(func() { b.List.add(&f.listed) })
	ctx := b.ctx
	b.work.Go(func() {
		for {
			b.fetch(ctx, t.Shown, sources, f)
			if b.Ended != nil && ctx.Err() == nil {
				b.Ended()
			}
			if b.remove(t, f) {
				return
			}
			sources = b.renew(ctx, t.Shown, sources)
		}
	})
}

// remove removes a task that has ended, and returns false if it was started again in the meantime.
func (b *Background) remove(t task, f *fetching) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-f.again:
		if !b.over {
			return false
		}
	default:
	}
	delete(b.running, t)
	b.List.change(func() { delete(b.List.running, &f.listed) })
	return true
}

// fetch downloads until the table is complete or no longer needed.
func (b *Background) fetch(ctx context.Context, t Shown, sources []transfer.Source, f *fetching) {
	table := t.table
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b.work.Go(func() { b.watch(ctx, t, cancel) })
	start := time.Now()
	if !b.Store.Views.Early(table)[t.view].Whole && !b.awaitReader(ctx, table, sources, readerTime) {
		return
	}
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		b.List.change(func() { f.Error = nil })
		err := b.Store.Hydrate(ctx, table, store.HydrateOptions{Sources: sources, Background: true})
		if err == nil {
			b.Log.Info("model complete", "table", table, "dur", time.Since(start).Round(time.Millisecond))
			return
		}
		if ctx.Err() != nil {
			return
		}
		if errdefs.IsDataLoss(err) || errdefs.IsInvalidArgument(err) {
			wait = lastRetry // each attempt would download the same amount
		}
		b.List.change(func() { f.Error = wire.Wrap(err) })
		b.Log.Error("the rest of a model that is in use cannot be fetched; trying again", "table", table, "wait", wait, "err", err)
		select {
		case <-time.After(wait):
		case <-f.again:
		case <-ctx.Done():
			return
		}
		sources = b.renew(ctx, t, sources)
	}
}

// awaitReader waits until a container has read of a model, but no longer than longest, and meanwhile looks for the
// order in which it is read, if none is known. It returns false if ctx has ended.
func (b *Background) awaitReader(ctx context.Context, table digest.Digest, sources []transfer.Source, longest time.Duration) bool {
	waiting, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	if b.Order != nil && !b.Store.HasOrder(table, sources) {
		o, err := b.Order(waiting, table, sources)
		if err == nil {
			err = b.Store.PutOrder(table, sources, o)
		}
		if err != nil {
			b.Log.Debug("no order of the model is known", "table", table, "err", err)
		}
	}
	select {
	case <-b.Store.FirstRead(table, sources):
	case <-waiting.Done():
	}
	return ctx.Err() == nil
}

// needed reports whether a table is needed where it is shown: a view for as long as its own snapshot is, whatever else
// refers to the table.
func (b *Background) needed(t Shown) bool {
	if t.view == "" {
		return len(b.Store.Catalog.RefsOf(t.table)) > 0
	}
	_, err := b.Store.Catalog.Ref(t.view)
	return !errdefs.IsNotFound(err)
}

// watch calls cancel when a table is no longer needed.
func (b *Background) watch(ctx context.Context, t Shown, cancel func()) {
	tick := time.NewTicker(referredEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !b.needed(t) {
			b.Log.Info("nothing needs the model any more, the rest is not fetched", "table", t.table, "view", t.view)
			cancel()
			return
		}
	}
}

// renew returns the current sources of a table and makes readers use them: credentials and
// repositories may have changed. Until the model is shown, its sources are unknown: then the
// previous ones are kept, but not for readers, as they may be those of another client that
// requested the table.
func (b *Background) renew(ctx context.Context, t Shown, before []transfer.Source) []transfer.Source {
	sources, err := b.Sources(ctx, t.view, t.table)
	if err != nil || len(sources) == 0 {
		sources = before
	} else {
		err = b.expose(ctx, t, sources)
	}
	if err != nil && ctx.Err() == nil {
		b.Log.Error("files of a model cannot be read before it is complete", "table", t.table, "err", err)
	}
	return sources
}

// expose makes the missing parts of a table readable.
func (b *Background) expose(ctx context.Context, t Shown, sources []transfer.Source) error {
	o := store.ExposeOptions{View: t.view, Sources: sources, Wait: true}
	if t.view == "" && b.Whole != nil {
		var err error
		if o.Whole, err = b.Whole(t.table); err != nil {
			return err
		}
	}
	return b.Store.Views.Expose(ctx, t.table, o)
}

// Resume prepares the models that were incomplete when the daemon ended. Models that snapshots show
// become readable again, in the order in which their pulls began: in the common view, the first
// table with its own chunks of a file determines the chunks. A pull that had not ended shows
// nothing, so it does not count. Resume returns the incomplete tables for Continue, including those
// that could not be made readable.
func (b *Background) Resume(ctx context.Context) (tables []Shown, err error) {
	refs := b.Store.Catalog.Refs(modelname.SnapshotPrefix)
	slices.SortStableFunc(refs, func(a, b store.Ref) int { return a.Created.Compare(b.Created) })
	done := map[Shown]bool{}
	for _, r := range refs {
		if !b.Shows(r) {
			continue
		}
		t := Shown{b.View(r), r.Table}
		if done[t] {
			continue
		}
		done[t] = true
		if complete(b.Store, t) {
			continue
		}
		sources, err := b.Sources(ctx, t.view, t.table)
		if err == nil {
			err = b.expose(ctx, t, sources)
		}
		if err != nil {
			b.Log.Error("files of a model cannot be read before it is complete", "table", t.table, "err", err)
		}
		if errdefs.IsNotFound(err) { // the table itself is missing: nothing to download is known
			continue
		}
		if _, early := b.Store.Views.Early(t.table)[t.view]; err != nil || early {
			tables = append(tables, t)
		}
	}
	return tables, nil
}

// Continue starts the download of the rest of the tables that Resume returned.
func (b *Background) Continue(ctx context.Context, tables []Shown) error {
	for _, t := range tables {
		sources, err := b.Sources(ctx, t.view, t.table)
		if err != nil {
			return err
		}
		b.Start(t.view, t.table, sources)
	}
	return nil
}

// complete reports whether a view has all files of a table.
func complete(s *store.Store, t Shown) bool {
	if t.view == "" {
		_, err := s.Views.Files(t.table)
		return err == nil
	}
	_, early := s.Views.Early(t.table)[t.view]
	if early || s.Views.Present(t.view) != nil {
		return false
	}
	_, err := s.Views.View(t.view).Readable(t.table)
	return err == nil
}

// shownIn returns the views in which references show, or showed, a table before it is complete.
func (b *Background) shownIn(table digest.Digest) (shown []Shown) {
	for _, r := range b.Store.Catalog.RefsOf(table) {
		if t := (Shown{b.View(r), table}); strings.HasPrefix(r.Name, modelname.SnapshotPrefix) && b.Shows(r) && !slices.Contains(shown, t) {
			shown = append(shown, t)
		}
	}
	return shown
}

// ShowsEarly reports whether a snapshot shows a table that is not complete.
func (b *Background) ShowsEarly(table digest.Digest) bool {
	return slices.ContainsFunc(b.shownIn(table), func(t Shown) bool { return !complete(b.Store, t) })
}

package daemon

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// The pauses between two attempts to bring the rest of a model.
const (
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
)

// settleTime is how long the rest of a model waits after it was shown: its containers start meanwhile,
// and have the machine and the link for themselves.
const settleTime = time.Second

// referredEvery is how often is looked whether anything refers to a model still.
const referredEvery = 5 * time.Second

// background brings the rest of models that are shown already.
//
//	start → bringing ──complete──▶ end
//	           │ ▲ └──no reference──▶ end
//	           ▼ │
//	        waiting, twice as long each time
type background struct {
	store   *store.Store
	sources func(ctx context.Context, view string, table digest.Digest) ([]transfer.Source, error)
	shown   func(store.Ref) bool   // whether a snapshot shows its table
	view    func(store.Ref) string // in which it does
	options store.ExposeOptions    // but for Sources
	ended   func()                 // called when work on a table has ended; nil does nothing
	log     *slog.Logger

	work sync.WaitGroup

	mu      sync.Mutex      // guards what follows
	ctx     context.Context // of begin
	over    bool            // nothing starts any more
	running map[task]*bringing
}

// bringing is the work on a task.
type bringing struct {
	again   chan struct{} // sending ends a pause
	started time.Time
	first   int64 // bytes that were there then
	failed  error // of the last attempt; nil if that goes on
}

// A task is a table to bring for a view, from the sources that somebody has. Whoever comes with others does
// not wait for these: the store lets both work on the same files.
type task struct {
	shownTable
	sources string // their keys
}

// A shownTable is a table that is shown in a view before it is complete.
type shownTable struct {
	view  string
	table digest.Digest
}

func newTask(table shownTable, sources []transfer.Source) task {
	var keys []string
	for _, s := range sources {
		keys = append(keys, s.Key())
	}
	return task{table, strings.Join(keys, "\n")}
}

// begin lets work go on until ctx is done, and returns what waits for its end.
func (b *background) begin(ctx context.Context) (wait func() error) {
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

// start begins to bring a table. If that goes on already from the same sources, the next attempt
// begins at once.
func (b *background) start(view string, table digest.Digest, sources []transfer.Source) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ctx == nil || b.over {
		return
	}
	t := newTask(shownTable{view, table}, sources)
	if w, ok := b.running[t]; ok {
		select {
		case w.again <- struct{}{}:
		default: // it knows
		}
		return
	}
	if b.running == nil {
		b.running = map[task]*bringing{}
	}
	w := &bringing{again: make(chan struct{}, 1), started: time.Now()}
	b.running[t] = w
	ctx := b.ctx
	b.work.Go(func() {
		for {
			b.bring(ctx, t.shownTable, sources, w)
			if b.ended != nil && ctx.Err() == nil {
				b.ended()
			}
			if b.leave(t, w.again) {
				return
			}
			sources = b.renew(ctx, t.shownTable, sources)
		}
	})
}

// leave says that a task has ended, unless somebody has asked for it again.
func (b *background) leave(t task, again <-chan struct{}) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-again:
		if !b.over {
			return false
		}
	default:
	}
	delete(b.running, t)
	return true
}

// bring fetches until the table is complete or nothing refers to it.
func (b *background) bring(ctx context.Context, t shownTable, sources []transfer.Source, w *bringing) {
	table := t.table
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b.work.Go(func() { b.watch(ctx, table, cancel) })
	b.found(ctx, w, table)
	start := time.Now()
	if !b.store.Early(table)[t.view].Whole {
		select {
		case <-time.After(settleTime):
		case <-ctx.Done():
			return
		}
	}
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		b.attempted(w, nil)
		err := b.store.Hydrate(ctx, table, store.HydrateOptions{Sources: sources, Background: true})
		if err == nil {
			b.log.Info("model complete", "table", table, "dur", time.Since(start).Round(time.Millisecond))
			return
		}
		if ctx.Err() != nil {
			return
		}
		if errdefs.IsDataLoss(err) || errdefs.IsInvalidArgument(err) {
			wait = lastRetry // it would cost as much each time
		}
		b.attempted(w, err)
		b.log.Error("the rest of a model that is in use can not be fetched; trying again", "table", table, "wait", wait, "err", err)
		select {
		case <-time.After(wait):
		case <-w.again:
		case <-ctx.Done():
			return
		}
		sources = b.renew(ctx, t, sources)
	}
}

// watch calls cancel when nothing refers to a table any more.
func (b *background) watch(ctx context.Context, table digest.Digest, cancel func()) {
	tick := time.NewTicker(referredEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if refs, err := b.store.RefsOf(ctx, table); err == nil && len(refs) == 0 {
			b.log.Info("model is not needed any more, the rest is not fetched", "table", table)
			cancel()
			return
		}
	}
}

// renew returns where a table can be fetched from now, for readers too: credentials and places may be
// other ones by now than those of before. Until the model is shown nothing is known: those of before count
// then, but for no reader, as they can be those of somebody else who asked for the table.
func (b *background) renew(ctx context.Context, t shownTable, before []transfer.Source) []transfer.Source {
	sources, err := b.sources(ctx, t.view, t.table)
	if err == nil && len(sources) == 0 {
		return before
	}
	if err == nil {
		err = b.expose(ctx, t, sources)
	}
	if err != nil && ctx.Err() == nil {
		b.log.Error("files of a model can not be read before it is complete", "table", t.table, "err", err)
	}
	return sources
}

// expose makes what is missing of a table readable.
func (b *background) expose(ctx context.Context, t shownTable, sources []transfer.Source) error {
	o := b.options
	o.View, o.Sources = t.view, sources
	return b.store.Expose(ctx, t.table, o)
}

// resume goes on with what was on its way when the daemon ended. Models that snapshots show become
// readable again, in the order in which their pulls began: in the common view the first table that brings
// a file in a way of its own is the one that counts. A pull that had not ended shows nothing, so it
// has no say in it. It returns the tables that are not complete: the rest is to be brought also of
// those that could not be made readable.
func (b *background) resume(ctx context.Context) (tables []shownTable, err error) {
	refs, err := b.store.Refs(ctx, "snapshot/")
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(refs, func(a, b store.Ref) int { return a.Created.Compare(b.Created) })
	done := map[shownTable]bool{}
	for _, r := range refs {
		if !b.shown(r) {
			continue
		}
		t := shownTable{b.view(r), r.Table}
		if done[t] {
			continue
		}
		done[t] = true
		if complete(ctx, b.store, t) {
			continue
		}
		sources, err := b.sources(ctx, t.view, t.table)
		if err == nil {
			err = b.expose(ctx, t, sources)
		}
		if err != nil {
			b.log.Error("files of a model can not be read before it is complete", "table", t.table, "err", err)
		}
		if errdefs.IsNotFound(err) { // the table itself: nobody can say what to bring
			continue
		}
		if _, early := b.store.Early(t.table)[t.view]; err != nil || early {
			tables = append(tables, t)
		}
	}
	return tables, nil
}

// complete says whether a view has all files of a table.
func complete(ctx context.Context, s *store.Store, t shownTable) bool {
	if t.view == "" {
		_, err := s.Files(ctx, t.table)
		return err == nil
	}
	_, early := s.Early(t.table)[t.view]
	if early || s.Present(ctx, t.view) != nil {
		return false
	}
	_, err := s.View(t.view).Readable(ctx, t.table)
	return err == nil
}

// shownIn returns where the references to a table show it before it is complete, or showed it.
func (b *background) shownIn(ctx context.Context, table digest.Digest) (shown []shownTable, err error) {
	refs, err := b.store.RefsOf(ctx, table)
	for _, r := range refs {
		if t := (shownTable{b.view(r), table}); strings.HasPrefix(r.Name, "snapshot/") && b.shown(r) && !slices.Contains(shown, t) {
			shown = append(shown, t)
		}
	}
	return shown, err
}

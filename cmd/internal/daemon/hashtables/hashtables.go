// Package hashtables uses the tables of hash states of a repository that the operator names (package hashstate): it
// takes those by trusted keys before a model is shown, so that its large blobs can be read before they are complete,
// and writes those of blobs that were downloaded here.
//
//	manifest requested ──▶ Pulled ──▶ Run: as Prepare, while containerd fetches what is small
//	pull ──▶ Prepare ──▶ one table for each large blob without chunks ──▶ Store.PutChains
//	complete model ──▶ Completed ──▶ queue ──▶ Run: kept chains of blobs that everybody may have ──▶ repository
//
// The tables of blobs that only some sources may have are not written: in a repository that others read, they would
// tell what these sources have.
package hashtables

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/convert/hashstate"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/signature/dsse"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
)

const (
	// patience is how long a pull waits for tables: without them, the model is read when it is complete. For so long
	// what was not there when its manifest was requested is not asked for again.
	patience = 5 * time.Second

	// rest is how long a repository that did not answer is not asked again.
	rest = time.Minute

	// atOnce limits the tables that a pull reads at a time, and memory the bytes that those of all pulls can have.
	atOnce = 16
	memory = 32 << 20

	// batch is how many bytes of states a pull has before it records them: all at once, unless they are of many blobs.
	batch = 4 << 20

	// maxQueue limits the models whose tables are still to be written, and maxPulled those whose tables are still to
	// be taken ahead.
	maxQueue, maxPulled = 1000, 16

	// writeLimit limits the time for writing one table. What could not be written is tried again after writeRest.
	writeLimit = 5 * time.Minute
	writeRest  = 10 * time.Minute
)

// Tables are the tables of a repository. A nil Tables has none.
type Tables struct {
	store      *store.Store
	repository *remote.Repository
	trust      dsse.Trust
	sign       crypto.Signer // nil: none are written
	log        *slog.Logger

	resting atomic.Pointer[time.Time] // until when; nil: it is not
	queue   chan digest.Digest
	pulled  chan store.Image
	ahead   atomic.Pointer[ahead] // the last one; nil: none
	free    *semaphore.Weighted   // of memory

	written map[digest.Digest]bool // blobs whose tables are in the repository; used by Run only
}

// An ahead is the table of a model whose tables of hash states are taken before it is prepared.
type ahead struct {
	table  digest.Digest
	began  time.Time
	done   chan struct{}
	absent map[digest.Digest]bool // blobs for which the repository has none; set before done is closed
}

// Keys are the keys of the configuration.
type Keys struct {
	trusted []crypto.PublicKey
	sign    crypto.Signer
}

// ReadKeys reads the files with keys that lazy.table_keys and lazy.table_sign name. Errors name the file.
func ReadKeys(l config.Lazy) (k Keys, err error) {
	for _, file := range l.TableKeys {
		p, err := os.ReadFile(file)
		if err != nil {
			return k, fmt.Errorf("configuration: lazy.table_keys: %w", err)
		}
		keys, err := dsse.ParseKeys(p)
		if err != nil {
			return k, fmt.Errorf("configuration: lazy.table_keys: %s: %w", file, err)
		}
		k.trusted = append(k.trusted, keys...)
	}
	if l.TableSign == "" {
		return k, nil
	}
	p, err := os.ReadFile(l.TableSign)
	if err != nil {
		return k, fmt.Errorf("configuration: lazy.table_sign: %w", err)
	}
	if k.sign, err = dsse.ParsePrivateKey(p); err != nil {
		return k, fmt.Errorf("configuration: lazy.table_sign: %s: %w", l.TableSign, err)
	}
	return k, nil
}

// Names returns the names of the trusted keys, as in Store.PutChains.
func (k Keys) Names() (names []string) {
	for _, key := range k.trusted {
		names = append(names, dsse.KeyName(key))
	}
	return names
}

// New returns the tables of the configuration; nil if it names no repository.
func New(l config.Lazy, k Keys, s *store.Store, client *remote.Client, log *slog.Logger) (*Tables, error) {
	if l.Tables == "" {
		return nil, nil
	}
	ref, err := remote.ParseRef(l.Tables)
	if err != nil {
		return nil, err
	}
	repository, err := client.NodeRepository(ref)
	if err != nil {
		return nil, err
	}
	return &Tables{
		store: s, repository: repository, trust: dsse.Trust{Keys: k.trusted}, sign: k.sign, log: log,
		queue: make(chan digest.Digest, maxQueue), pulled: make(chan store.Image, maxPulled), free: semaphore.NewWeighted(memory), written: map[digest.Digest]bool{},
	}, nil
}

// Pulled has Run take the tables of a model of which containerd requests the manifest. If too many wait, Prepare does.
func (t *Tables) Pulled(im store.Image) {
	if t == nil || len(t.trust.Keys) == 0 {
		return
	}
	if a := t.ahead.Load(); a != nil && a.table == im.Table && !a.ended() { // containerd requests it twice
		return
	}
	select {
	case t.pulled <- im:
	default:
	}
}

// takeAhead takes the tables of models that are Pulled until ctx ends.
func (t *Tables) takeAhead(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case im := <-t.pulled:
			a := &ahead{table: im.Table, began: time.Now(), done: make(chan struct{})}
			t.ahead.Store(a)
			limited, cancel := context.WithTimeout(ctx, patience)
			a.absent = t.take(limited, im.Table, im.PrivateNames, nil)
			cancel()
			close(a.done)
		}
	}
}

func (a *ahead) ended() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// Prepare takes the tables of the blobs of a model that sources must still provide. Without one, a blob is read when it
// is complete.
func (t *Tables) Prepare(ctx context.Context, table digest.Digest, sources []transfer.Source) {
	if t == nil || len(t.trust.Keys) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var absent map[digest.Digest]bool
	if a := t.ahead.Load(); a != nil && a.table == table && time.Since(a.began) < patience {
		select {
		case <-a.done:
			absent = a.absent
		case <-ctx.Done():
			return
		}
	}
	t.take(ctx, table, transfer.Names(sources), absent)
}

// take takes the tables of the blobs of a model that sources with these names must still provide, but for those that
// are known to be absent. It returns the blobs for which there is none.
func (t *Tables) take(ctx context.Context, table digest.Digest, names []string, known map[digest.Digest]bool) (absent map[digest.Digest]bool) {
	if until := t.resting.Load(); until != nil && time.Now().Before(*until) {
		return nil
	}
	blobs, err := t.store.Unchained(table, names)
	if err != nil {
		t.log.WarnContext(ctx, "no tables of hash states are looked for", "table", table, "err", err)
		return nil
	}
	absent = map[digest.Digest]bool{} // guarded by mu
	var all errgroup.Group
	all.SetLimit(atOnce)
	var answered atomic.Bool // the repository has answered
	var mu sync.Mutex
	var chains []store.SignedChain // guarded by mu, with states of size bytes
	size := 0
	put := func() {
		if err := t.store.PutChains(chains...); err != nil {
			t.log.WarnContext(ctx, "tables of hash states are not used", "tables", t.repository, "err", err)
		}
		chains, size = nil, 0
	}
	for _, b := range blobs {
		if known[b.Digest] {
			continue
		}
		all.Go(func() error {
			c, ok := t.read(ctx, b, &answered)
			mu.Lock()
			defer mu.Unlock()
			if ok && c.States == nil {
				absent[b.Digest] = true
			} else if ok {
				chains = append(chains, c)
				if size += len(c.States); size >= batch {
					put()
				}
			}
			return nil
		})
	}
	_ = all.Wait() // they return none
	put()
	return absent
}

// read reads the table of a blob, and reports whether the repository has answered: without states if there is none, or
// none that can be used. A repository that does not answer is not asked for a while, for any model; one that has
// answered, and not all in time, was only asked for many tables.
func (t *Tables) read(ctx context.Context, b filetable.Blob, answered *atomic.Bool) (c store.SignedChain, ok bool) {
	size := hashstate.Limit(b)
	if t.free.Acquire(ctx, size) != nil {
		return c, false // ctx has ended
	}
	defer t.free.Release(size)
	chain, signer, err := hashstate.Read(ctx, t.repository, &t.trust, b)
	switch {
	case err == nil:
		answered.Store(true)
		t.log.DebugContext(ctx, "a blob can be read before it is complete", "digest", b.Digest, "tables", t.repository, "signer", signer)
		return store.SignedChain{Blob: b, States: chain, Signer: signer}, true
	case errdefs.IsNotFound(err):
		answered.Store(true)
		return c, true
	case errdefs.IsPermissionDenied(err), errdefs.IsFailedPrecondition(err), errdefs.IsInvalidArgument(err), errdefs.IsDataLoss(err),
		errdefs.IsNotImplemented(err), errdefs.IsUnknown(err):
		t.log.WarnContext(ctx, "the table of hash states of a blob is not used", "digest", b.Digest, "tables", t.repository, "err", err)
		return c, true
	case errors.Is(err, context.Canceled), ctx.Err() != nil && answered.Load():
	default:
		until := time.Now().Add(rest)
		t.resting.Store(&until)
		t.log.WarnContext(ctx, "the repository of tables of hash states does not answer; models are read when they are complete",
			"tables", t.repository, "wait", rest, "err", err)
	}
	return c, false
}

// Completed has Run write the tables of a model that is complete.
func (t *Tables) Completed(table digest.Digest) {
	if t == nil || t.sign == nil {
		return
	}
	select {
	case t.queue <- table:
	default:
		t.log.Warn("the tables of hash states of a model are not written: too many wait", "table", table)
	}
}

// Run takes and writes tables until ctx ends.
func (t *Tables) Run(ctx context.Context) error {
	if t == nil {
		return nil
	}
	var taking sync.WaitGroup
	defer taking.Wait()
	taking.Go(func() { t.takeAhead(ctx) })
	for {
		select {
		case <-ctx.Done():
			return nil
		case table := <-t.queue:
			if !t.write(ctx, table) {
				time.AfterFunc(writeRest, func() { t.Completed(table) })
			}
		}
	}
}

// write writes the tables of the blobs of a model, and reports whether it has nothing more to do for it.
func (t *Tables) write(ctx context.Context, table digest.Digest) (done bool) {
	m, err := t.store.Table(table)
	if err != nil {
		return true // it is gone again
	}
	done = true
	for _, b := range m.Windowless() {
		if t.written[b.Digest] {
			continue
		}
		chain, err := t.store.Chain(b.Digest, nil)
		if err != nil {
			continue // it is not for everybody, or came by a table
		}
		limited, cancel := context.WithTimeout(ctx, writeLimit)
		written, err := hashstate.Write(limited, t.repository, t.sign, b, chain)
		cancel()
		if ctx.Err() != nil {
			return true
		}
		if err != nil {
			t.log.Warn("the table of hash states of a blob is not written", "digest", b.Digest, "tables", t.repository, "wait", writeRest, "err", err)
			done = false
			continue
		}
		if written {
			t.log.Info("other nodes can read a blob before it is complete", "digest", b.Digest, "tables", t.repository)
		}
		t.written[b.Digest] = true
	}
	return done
}

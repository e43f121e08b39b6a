package jobs

import (
	"slices"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
)

// keepEnded limits the number of remembered ended jobs.
const keepEnded = 50

// A List has all running work of the daemon, with who waits for it, and the last work that has ended. What the store
// knows of its downloads is added by Jobs.Status. The zero value is ready for use.
type List struct {
	mu      sync.Mutex // guards the fields below, and the listed work
	running map[*listed]bool
	ended   []wire.Job // oldest first
}

// A listed is running work: a job, a pull of containerd, a verification, or the rest of a model.
type listed struct {
	wire.Job
	rest bool // of a model, and not listed while other work downloads the model
	rate rate // of a verification
}

// add lists w. The caller holds l.mu.
func (l *List) add(w *listed) {
	if l.running == nil {
		l.running = map[*listed]bool{}
	}
	w.Started = time.Now()
	l.running[w] = true
}

// end remembers that w has ended, and returns its duration. The caller holds l.mu.
func (l *List) end(w *listed, err error) time.Duration {
	delete(l.running, w)
	j := w.Job
	j.Ended, j.Rate, j.Waiting, j.Queued = time.Now(), 0, 0, false
	if err != nil {
		j.Error = wire.Wrap(err)
	}
	l.ended = append(l.ended, j)
	l.ended = l.ended[max(0, len(l.ended)-keepEnded):]
	return j.Ended.Sub(j.Started)
}

// change changes listed work.
func (l *List) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// jobs returns the running work, oldest first, and the ended, newest first. The rest of a model is in it once, and not
// while other work downloads the model.
func (l *List) jobs() (running, ended []wire.Job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var rests []wire.Job
	for w := range l.running {
		if w.rest {
			rests = append(rests, w.Job)
		} else {
			running = append(running, w.Job)
		}
	}
	slices.SortFunc(rests, byStart)
	for _, j := range rests {
		if !downloads(running, j.Table) {
			running = append(running, j)
		}
	}
	slices.SortStableFunc(running, byStart)
	ended = slices.Clone(l.ended)
	slices.Reverse(ended)
	return running, ended
}

func byStart(a, b wire.Job) int { return a.Started.Compare(b.Started) }

package agent

import (
	"context"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/plan"
	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/opencontainers/go-digest"
)

// watchDaemon checks the daemon until ctx ends, and prints when its state changes.
func (a *Agent) watchDaemon(ctx context.Context) error {
	said := ""
	for {
		pulls, err := a.check(ctx)
		state := "ballastd is ready"
		if err != nil {
			state = "ballastd is not ready: " + wire.Text(err)
		}
		if ctx.Err() != nil {
			return nil
		}
		switch changed := a.saw(state != said, err == nil, pulls); {
		case a.Node == "": // nothing is reconciled
			if err := a.setPins(ctx); err != nil {
				a.Log.Warn("pins are not set", "err", err)
			}
		case changed:
			a.wake()
		}
		if state != said {
			a.Log.Info(state)
			said = state
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(checkEvery):
		}
	}
}

// check returns the pulls of containerd, or why the daemon is not ready, and waits for the answer only so long.
func (a *Agent) check(ctx context.Context) (pulls []wire.Pull, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if err = a.daemon.Ready(ctx); err == nil && a.Models {
		pulls, _ = a.daemon.FleetPulls(ctx) // only for events
	}
	return pulls, err
}

// saw records how the daemon is, and reports whether there is something to do or to write.
func (a *Agent) saw(changed, ready bool, pulls []wire.Pull) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if changed {
		a.ready, a.stale = ready, true
	}
	pulling := len(pulls) > 0 || len(a.pulls) > 0
	a.pulls = pulls
	return changed || pulling
}

// setPins has the daemon pin the versions of all models, and nothing else, if they have changed, or it was not asked
// for a while. A model that is no longer there, or whose image containerd has lost, is fetched again.
func (a *Agent) setPins(ctx context.Context) error {
	var want []wire.FleetPin
	states, ready := a.states()
	for _, m := range states {
		for _, d := range m.Pinned {
			want = append(want, wire.FleetPin{Ref: m.Ref, Digest: digest.Digest(d)})
		}
	}
	a.mu.Lock()
	same := !a.stale && slices.Equal(want, a.pinned) && (len(want) == 0 || time.Since(a.pinAt) < pinEvery)
	a.stale = a.stale && !ready
	a.mu.Unlock()
	if !ready || same {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	var set wire.FleetPins
	var err error
	if a.Models {
		set, err = a.daemon.SetFleetPins(ctx, wire.FleetPins{Pins: want})
	} else {
		err = a.daemon.DropFleetPins(ctx) // of a time with ModelSets
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.stale = true
		return err
	}
	a.pinned, a.pinAt = set.Pins, time.Now()
	if len(set.Pins) == len(want) {
		return nil
	}
	for ref, m := range a.work { // a version since then is not in want
		was := m.state.Pinned
		m.state.Pinned = slices.DeleteFunc(slices.Clone(m.state.Pinned), func(d string) bool {
			pin := wire.FleetPin{Ref: ref, Digest: digest.Digest(d)}
			return slices.Contains(want, pin) && !slices.Contains(set.Pins, pin)
		})
		newest := len(m.state.Pinned) > 0 && m.state.Pinned[0] == was[0]
		if !newest && m.state.Phase == v1alpha1.PhaseReady {
			m.enter(v1alpha1.PhasePending)
			m.due = time.Time{}
		}
	}
	a.wake()
	return nil
}

// look looks at the disk and the mirrors of the node if it is time, and returns when it is time again.
func (a *Agent) look(ctx context.Context) time.Duration {
	if wait := time.Until(a.looked.Add(lookUsage)); wait > 0 {
		return wait
	}
	a.looked = time.Now() // an error too: the daemon may be slow
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	n, err := a.daemon.FleetNode(ctx)
	if err != nil {
		a.Log.Warn("the disk of the node is not known", "err", wire.Text(err))
		return lookUsage
	}
	a.usage = plan.Usage(n)
	return lookUsage
}

// pulling returns the pulls of containerd.
func (a *Agent) pulling() []v1alpha1.PullState {
	a.mu.Lock()
	defer a.mu.Unlock()
	return plan.Pulls(a.pulls)
}

package agent

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/plan"
	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/containerd/errdefs"
)

// lookUp asks what a tag points to if this node does so for all and it is time, and returns when it is time again. The
// caller holds Agent.mu.
func (a *Agent) lookUp(ctx context.Context, ref string, m *model) time.Duration {
	switch {
	case m.wish.Node == "":
		m.state.Lookup, m.lookup.tries = nil, tries{}
		return time.Hour
	case m.lookup.runs || !a.ready || m.wish.Paused:
		return time.Hour // the end of what prevents it wakes the agent
	}
	if wait := time.Until(m.lookup.due); wait > 0 && m.state.Lookup != nil && m.state.Lookup.Term == m.wish.Term {
		return wait
	}
	m.lookup.runs = true
	go a.ask(context.WithoutCancel(ctx), ref, m.wish, m)
	return time.Hour
}

// ask asks what a tag points to.
func (a *Agent) ask(ctx context.Context, ref string, w plan.Wish, m *model) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	is := v1alpha1.LookupState{Term: w.Term}
	err := a.withLogins(ctx, ref, w, func(l login) error {
		v, err := a.daemon.FleetVersion(ctx, wire.FleetVersionRequest{Ref: ref, Username: l.username, Password: l.password})
		if err == nil && v.Imported && w.Digest != "" { // others may not have it
			err = fmt.Errorf("the registry does not answer: %w", errdefs.ErrUnavailable)
		}
		is.Digest = v.Digest.String()
		return err
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	if m.lookup.runs = false; err == nil {
		m.lookup.tries = tries{due: a.refresh()}
	} else {
		m.lookup.failed()
		is.Digest, is.Error = "", truncated(wire.Text(err))
		a.Log.Warn("tag was not looked up", "ref", ref, "err", is.Error)
	}
	m.state.Lookup = &is
	a.wake()
}

// refresh returns when a tag is looked up again: at random, so that nodes do not ask at the same time.
func (a *Agent) refresh() time.Time { return time.Now().Add(a.Refresh*3/4 + rand.N(a.Refresh/2)) }

package transfer

import (
	"cmp"
	"container/list"
	"slices"
	"time"
)

// The caller of all functions in this file holds Scheduler.mu.

// urgent returns the index of the slots for a class in account.share.
func urgent(c Class) int {
	if c == Urgent {
		return 1
	}
	return 0
}

// count adds n to the share of the account that has the slot.
func (sl *Slot) count(n int) { cmp.Or(sl.revoked, sl.account).share[urgent(sl.class)] += n }

func (sl *Slot) revoke(to *account) {
	sl.count(-1)
	sl.revoked = to
	sl.count(1)
	sl.cancel(ErrRevoked)
}

// reclass applies the class of the flow.
func (sl *Slot) reclass() {
	p := sl.pool
	switch class := sl.flow.now(); {
	case class == sl.class:
	case sl.queued == nil:
		sl.count(-1)
		sl.class = class
		sl.count(1)
	default:
		p.dequeue(sl)
		sl.class = class
		p.enqueue(sl)
		p.dispatch()
		p.take(sl.account, class, time.Now())
	}
}

// enqueue adds a slot to those that wait.
func (p *Pool) enqueue(sl *Slot) {
	sl.queued = sl.account.waiting[sl.class].PushBack(sl)
	if sl.account.turn[sl.class] == nil {
		p.line(sl.account, sl.class)
	}
}

// dequeue removes a slot from those that wait.
func (p *Pool) dequeue(sl *Slot) {
	sl.account.waiting[sl.class].Remove(sl.queued)
	sl.queued = nil
	if sl.account.waiting[sl.class].Len() == 0 {
		p.line(sl.account, sl.class)
	}
}

// line puts an account after the others that wait, and removes it if it does not wait.
func (p *Pool) line(a *account, c Class) {
	if a.turn[c] != nil {
		p.turns[c][a.late[c]].Remove(a.turn[c])
		a.turn[c] = nil
	}
	if a.first(c) != nil {
		a.late[c] = p.late(a, c)
		a.turn[c] = p.turns[c][a.late[c]].PushBack(a)
	}
}

// late returns 1 if an account is served after others, otherwise 0.
func (p *Pool) late(a *account, c Class) int {
	if p.s.slow[a.source] && time.Since(a.first(c).since) < slowWait {
		return 1
	}
	return 0
}

// first returns the slot of a class that waits longest; nil if none waits.
func (a *account) first(c Class) *Slot {
	if e := a.waiting[c].Front(); e != nil {
		return e.Value.(*Slot)
	}
	return nil
}

// forget drops an account without slots, but remembers for a while that it took one.
func (p *Pool) forget(a *account) {
	if a.turn != [classes]*list.Element{} || a.share != [2]int{} || p.accounts[a.source] != a {
		return
	}
	if d := aging - time.Since(a.took); d > 0 {
		time.AfterFunc(d, func() {
			p.s.mu.Lock()
			defer p.s.mu.Unlock()
			p.forget(a)
		})
		return
	}
	delete(p.accounts, a.source)
}

// dispatch grants free slots, and schedules tick while slots wait.
func (p *Pool) dispatch() {
	now := time.Now()
	for sl := p.next(now); sl != nil; sl = p.next(now) {
		p.dequeue(sl)
		p.line(sl.account, sl.class)
		p.held = append(p.held, sl)
		sl.count(1)
		sl.aged = sl.class == Background && p.busy(nil)
		sl.seenAt = now
		close(sl.granted)
	}
	if p.waits(Urgent) || p.waits(Soon) || p.quiet && slices.ContainsFunc(p.held, func(h *Slot) bool { return h.class == Urgent && !h.slow }) {
		p.yield(false)
	}
	if !p.ticking && (p.waits(Urgent) || p.waits(Soon) || p.waits(Background)) {
		p.ticking = true
		time.AfterFunc(patience, p.tick)
	}
}

// waits reports whether a slot of a class waits.
func (p *Pool) waits(c Class) bool { return p.turns[c][0].Len()+p.turns[c][1].Len() > 0 }

// yield revokes slots of background work; those granted beside other work only if all is true.
func (p *Pool) yield(all bool) {
	for _, h := range p.held {
		if h.class == Background && h.revoked == nil && !p.costly && (all || !h.aged) {
			h.revoke(h.account)
		}
	}
}

// next returns the slot to grant now; nil if there is none.
func (p *Pool) next(now time.Time) *Slot {
	var held [classes]int
	for _, h := range p.held {
		held[h.class]++
	}
	if held[Urgent] < p.urgent && p.waits(Urgent) {
		return p.best(Urgent, func(*account) bool { return true })
	}
	n := held[Soon] + held[Background]
	if n >= p.size+p.first {
		return nil
	}
	free := func(a *account) bool { return n < p.size || a.share[0] == 0 }
	var back *Slot
	if !p.s.paused && held[Background] < p.background {
		back = p.best(Background, func(a *account) bool { return free(a) && !(p.quiet && p.busy(a)) })
	}
	if back != nil && back.served(now) {
		return back
	}
	if soon := p.best(Soon, free); soon != nil || p.quiet && p.busy(nil) {
		return soon
	}
	return back
}

// served reports whether background work is served beside other work.
func (sl *Slot) served(now time.Time) bool {
	return now.Sub(sl.since) >= aging && sl.account.share[0] == 0 && sl.account.late[Background] == 0
}

// busy reports whether work of an account, or any work if a is nil, that is not in the background
// runs and progresses, or waits.
func (p *Pool) busy(a *account) bool {
	return slices.ContainsFunc(p.held, func(h *Slot) bool { return h.class != Background && !h.slow && (a == nil || h.account == a) }) ||
		a == nil && (p.waits(Urgent) || p.waits(Soon))
}

// best returns the slot of a class to grant first, among the accounts that may have one.
func (p *Pool) best(c Class, may func(*account) bool) *Slot {
	for i := range p.turns[c] {
		var best *account
		for e := p.turns[c][i].Front(); e != nil && (best == nil || best.share[urgent(c)] > 0); e = e.Next() {
			if a := e.Value.(*account); (best == nil || a.share[urgent(c)] < best.share[urgent(c)]) && may(a) {
				best = a
			}
		}
		if best != nil {
			return best.first(c)
		}
	}
	return nil
}

// tick measures progress and revokes slots for waiting ones.
func (p *Pool) tick() {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.ticking = false
	now := time.Now()
	for _, h := range p.held {
		h.measure(now)
	}
	for c := range Class(classes) {
		for i := range p.turns[c] {
			e := p.turns[c][i].Front()
			for range 2 * len(p.held) { // accounts after an account without slots can take no more than it
				if e == nil {
					break
				}
				a := e.Value.(*account)
				e = e.Next()
				for p.take(a, c, now) {
				}
				if p.late(a, c) < i {
					p.line(a, c)
				}
			}
		}
	}
	p.dispatch()
}

// measure finds out whether the slot, and therefore its source, is slow.
func (sl *Slot) measure(now time.Time) {
	d := now.Sub(sl.seenAt)
	if d < max(look, time.Duration(sl.gather.Load())) {
		return
	}
	n, slow := sl.bytes.Load(), sl.pool.s.slow
	sl.slow = float64(n-sl.seen) < MinRate*d.Seconds()
	sl.seen, sl.seenAt = n, now
	if len(slow) >= maxSlow {
		clear(slow)
	}
	if delete(slow, sl.account.source); sl.slow {
		slow[sl.account.source] = true
	}
}

// take revokes a slot of another account for one that waits. Of a flow the youngest slot is revoked,
// see Ordered.
func (p *Pool) take(a *account, c Class, now time.Time) bool {
	w, u := a.first(c), urgent(c)
	if w == nil || c == Background && p.s.paused {
		return false
	}
	from := c // the most urgent class that gives way
	if c == Background && w.served(now) {
		from = Soon
	}
	patient := now.Sub(w.since) >= patience || now.Sub(a.took) < aging
	var victim *Slot
	taken := 0
	for _, h := range slices.Backward(p.held) {
		switch gap := h.account.share[u] - a.share[u]; {
		case urgent(h.class) != u:
		case h.revoked == a:
			taken++
		case h.revoked != nil, h.account == a, h.class < from, victim != nil && victim.account.share[u] >= h.account.share[u]:
		case gap > 1 && patient && !p.costly,
			gap > 0 && patient && h.slow,
			gap > 0 && p.s.slow[h.account.source] && !p.s.slow[a.source] && !p.costly:
			victim = h
		}
	}
	if victim == nil || taken >= a.waiting[c].Len() {
		return false
	}
	for _, h := range slices.Backward(p.held) {
		if h.revoked == nil && h.flow.whole() == victim.flow.whole() && urgent(h.class) == u {
			a.took = now
			h.revoke(a)
			return true
		}
	}
	panic("internal error: a slot that is not held")
}

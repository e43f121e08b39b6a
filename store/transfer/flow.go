package transfer

// A Class is the urgency of work.
type Class int

const (
	Urgent     Class = iota // a reader waits for the bytes
	Soon                    // a reader will need them, or a caller waits for the whole model
	Background              // no caller waits

	classes = Background + 1
)

// A Flow is a piece of work, such as fetching a blob. Its class applies to all its slots.
type Flow struct {
	s     *Scheduler
	of    *Flow // the work that it belongs to, or nil
	class Class // guarded by Scheduler.mu

	slots map[*Slot]bool // of the whole work, waiting and held; guarded by Scheduler.mu
}

// NewFlow returns a Flow.
func (s *Scheduler) NewFlow(c Class) *Flow { return &Flow{s: s, class: c, slots: map[*Slot]bool{}} }

// Part returns a Flow that is as urgent as f, and can be promoted separately.
func (f *Flow) Part() *Flow { return &Flow{s: f.s, of: f, class: Background} }

// now returns the class. The caller holds Scheduler.mu.
func (f *Flow) now() Class {
	if f.of == nil {
		return f.class
	}
	return min(f.class, f.of.now())
}

func (f *Flow) whole() *Flow {
	if f.of == nil {
		return f
	}
	return f.of.whole()
}

// Class returns the current class of the work.
func (f *Flow) Class() Class {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	return f.now()
}

// Promote makes the work, and its waiting slots, at least as urgent as c.
func (f *Flow) Promote(c Class) {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	if c < f.class {
		f.set(c)
	}
}

// rest makes a part as urgent as the whole again.
func (f *Flow) rest() {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	if f.class != Background {
		f.set(Background)
	}
}

// set sets the class. The caller holds Scheduler.mu.
func (f *Flow) set(c Class) {
	f.class = c
	for sl := range f.whole().slots {
		sl.reclass()
	}
	f.s.dispatch()
}

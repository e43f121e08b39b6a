package store

import "sync"

// A flight is a range that is on its way, fetched by one for all who want it.
type flight struct {
	class class         // of who fetches it
	done  chan struct{} // closed at the end
	err   error         // valid then
	boost chan struct{} // closed when somebody waits for it who does not want to
	once  sync.Once     // of boost
}

func newFlight(c class) *flight {
	return &flight{class: c, done: make(chan struct{}), boost: make(chan struct{})}
}

// hurry makes the flight urgent.
func (f *flight) hurry() { f.once.Do(func() { close(f.boost) }) }

// land ends the flight.
func (f *flight) land(err error) {
	f.err = err
	close(f.done)
}

// closed says whether a channel that is only ever closed is.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

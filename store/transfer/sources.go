package transfer

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// A Source is a place that bytes come from, as somebody sees it. What a node has to share (places,
// buffers, unpackers, readers) is shared between sources.
type Source struct {
	// Name says what place it is: "host/repository" for a registry, otherwise a name that no
	// registry can have.
	Name string

	// Who says with whose credentials it is read; empty for none.
	Who string

	Fetcher
}

// Key tells sources apart.
func (s Source) Key() string { return s.Name + " " + s.Who }

// GroupKey names the repositories of a list of sources. What is on its way belongs to one such group:
// others may have no right to it, and it may not be verified. Sources that are no repositories, such as a
// content store on the node, are of any group.
func GroupKey(list []Source) string {
	var names []string
	for _, s := range list {
		if strings.Contains(s.Name, "/") {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), "\n")
}

// A Body can tell how it was got. A body of a Fetcher that is none was got without credentials.
type Body interface {
	// Private says that credentials were sent to get the bytes: not everybody can have them.
	Private() bool
}

// IsPrivate says whether credentials were sent to get a body.
func IsPrivate(body any) bool {
	b, ok := body.(Body)
	return ok && b.Private()
}

// How long a source that did badly is asked after the others.
const (
	slowFor  = 30 * time.Second
	wrongFor = 10 * time.Minute
)

// Sources are where a blob can be had. They belong to those who ask for the blob, and more can ask
// while it is on its way. The zero value has none.
type Sources struct {
	mu     sync.Mutex           // guards what follows
	askers []asker              // in the order in which they came
	bad    map[string]time.Time // by key: asked after the others before then
	gave   map[string]bool      // by key, those that bytes came from: whether with credentials
}

type asker struct {
	name string
	list []Source
}

// Set says where somebody has the blob from, in order; what he said before counts no more.
func (s *Sources) Set(name string, list []Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.askers, func(a asker) bool { return a.name == name })
	if i < 0 {
		s.askers = append(s.askers, asker{name, list})
	} else {
		s.askers[i].list = list
	}
}

// Drop forgets what somebody said.
func (s *Sources) Drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.askers = slices.DeleteFunc(s.askers, func(a asker) bool { return a.name == name })
}

// Order returns the sources as they are to be asked: those that did well first, otherwise in the order
// in which they came.
func (s *Sources) Order() []Source {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var good, bad []Source
	seen := map[string]bool{}
	for _, a := range s.askers {
		for _, src := range a.list {
			switch key := src.Key(); {
			case seen[key]:
				continue
			case s.bad[key].After(now):
				bad = append(bad, src)
			default:
				good = append(good, src)
			}
			seen[src.Key()] = true
		}
	}
	slices.SortStableFunc(bad, func(a, b Source) int { // the wrong ones last
		return s.bad[a.Key()].Compare(s.bad[b.Key()])
	})
	return append(good, bad...)
}

// Payer returns the key of the source that is asked first, or the empty one.
func (s *Sources) Payer() string {
	if order := s.Order(); len(order) > 0 {
		return order[0].Key()
	}
	return ""
}

// Blame says that a source brought wrong bytes.
func (s *Sources) Blame(src Source) { s.demote(src, wrongFor) }

// slowed says that a source is slow, if another one may be better.
func (s *Sources) slowed(src Source) { s.demote(src, slowFor) }

func (s *Sources) demote(src Source, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bad == nil {
		s.bad = map[string]time.Time{}
	}
	s.bad[src.Key()] = time.Now().Add(d)
}

// better says whether there is a source that nothing bad is known of, other than those.
func (s *Sources) better(than map[string]bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, a := range s.askers {
		for _, other := range a.list {
			if !than[other.Key()] && !s.bad[other.Key()].After(now) {
				return true
			}
		}
	}
	return false
}

// took notes that bytes of a source are used.
func (s *Sources) took(key string, private bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gave == nil {
		s.gave = map[string]bool{}
	}
	s.gave[key] = s.gave[key] || private
}

// Took notes that bytes of what other brought are used.
func (s *Sources) Took(other *Sources) {
	for key, private := range other.Gave() {
		s.took(key, private)
	}
}

// Gave returns the sources that bytes came from, by key, and whether with credentials.
func (s *Sources) Gave() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]bool, len(s.gave))
	for k, v := range s.gave {
		out[k] = v
	}
	return out
}

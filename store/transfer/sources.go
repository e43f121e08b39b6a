package transfer

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// A Source provides bytes with certain credentials. The resources of a node (request slots,
// buffers, unpackers, readers) are shared between sources.
type Source struct {
	// Name is "host/repository" for a registry, otherwise a name that no registry can have.
	Name string

	// CredentialsID identifies the credentials; empty for none.
	CredentialsID string

	Fetcher
}

// Key identifies a source.
func (s Source) Key() string { return s.Name + " " + s.CredentialsID }

// GroupKey identifies the repositories in a list of sources. Staged bytes belong to one such group:
// other groups may not be entitled to them, and they may be unverified. Sources that are not
// repositories, such as a content store on the node, are ignored.
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

// A Body reports how it was obtained. Other bodies of a Fetcher were obtained without credentials.
type Body interface {
	// Private reports whether credentials were sent to get the bytes, so that they are not public.
	Private() bool
}

// IsPrivate reports whether credentials were sent to get a body.
func IsPrivate(body any) bool {
	b, ok := body.(Body)
	return ok && b.Private()
}

// How long a source with problems is tried after the others.
const (
	slowFor  = 30 * time.Second
	wrongFor = 10 * time.Minute
)

// Sources are the sources of a blob. They belong to the callers that need the blob, and callers can
// be added during a transfer. The zero value has none.
type Sources struct {
	mu        sync.Mutex           // guards the following
	callers   []caller             // in order of their first Set
	bad       map[string]time.Time // by key: tried after the others until then
	providers map[string]bool      // by key of the sources that provided bytes: whether with credentials
}

type caller struct {
	name string
	list []Source
}

// Set sets the sources of a caller, in order, replacing its earlier ones.
func (s *Sources) Set(name string, list []Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.callers, func(a caller) bool { return a.name == name })
	if i < 0 {
		s.callers = append(s.callers, caller{name, list})
	} else {
		s.callers[i].list = list
	}
}

// Drop removes the sources of a caller.
func (s *Sources) Drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.callers = slices.DeleteFunc(s.callers, func(a caller) bool { return a.name == name })
}

// Order returns the sources in the order in which to try them: those without problems first,
// otherwise as they were set.
func (s *Sources) Order() []Source {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var good, bad []Source
	seen := map[string]bool{}
	for _, a := range s.callers {
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
	slices.SortStableFunc(bad, func(a, b Source) int { // sources of wrong bytes last
		return s.bad[a.Key()].Compare(s.bad[b.Key()])
	})
	return append(good, bad...)
}

// Payer returns the key of the first source, or "".
func (s *Sources) Payer() string {
	if order := s.Order(); len(order) > 0 {
		return order[0].Key()
	}
	return ""
}

// Blame records that a source sent wrong bytes.
func (s *Sources) Blame(src Source) { s.demote(src, wrongFor) }

// slowed records that a source is slow, if another one may be better.
func (s *Sources) slowed(src Source) { s.demote(src, slowFor) }

func (s *Sources) demote(src Source, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bad == nil {
		s.bad = map[string]time.Time{}
	}
	s.bad[src.Key()] = time.Now().Add(d)
}

// better reports whether there is another source without known problems.
func (s *Sources) better(than map[string]bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, a := range s.callers {
		for _, other := range a.list {
			if !than[other.Key()] && !s.bad[other.Key()].After(now) {
				return true
			}
		}
	}
	return false
}

// addProvider records that bytes of a source are used.
func (s *Sources) addProvider(key string, private bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.providers == nil {
		s.providers = map[string]bool{}
	}
	s.providers[key] = s.providers[key] || private
}

// AddProviders records that bytes from the sources of other are used.
func (s *Sources) AddProviders(other *Sources) {
	for key, private := range other.Providers() {
		s.addProvider(key, private)
	}
}

// Providers returns the sources that provided bytes, by key, and whether with credentials.
func (s *Sources) Providers() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]bool, len(s.providers))
	for k, v := range s.providers {
		out[k] = v
	}
	return out
}

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

	// Endpoint is the server. Nil means an origin without memory.
	Endpoint *Endpoint

	Fetcher
}

// Key identifies a source.
func (s Source) Key() string {
	if s.Endpoint.isMirror() {
		return s.Name + " " + s.CredentialsID + " " + s.Endpoint.Name
	}
	return s.Name + " " + s.CredentialsID
}

// A Spread is a Fetcher that reads the same blobs from several endpoints: its Source stands for one at each.
type Spread interface {
	// Endpoints returns a Source for each endpoint, in order. Its Fetcher reads only there; it needs no Name and
	// CredentialsID.
	Endpoints() []Source
}

// spread replaces the sources of several endpoints by one for each.
func spread(list []Source) (out []Source) {
	for _, src := range list {
		several, ok := src.Fetcher.(Spread)
		if !ok {
			out = append(out, src)
			continue
		}
		for _, at := range several.Endpoints() {
			at.Name, at.CredentialsID = src.Name, src.CredentialsID
			out = append(out, at)
		}
	}
	return out
}

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
	absent    map[string]*rest     // by key of mirrors that did not have it, or were not asked
	doubted   bool                 // a mirror sent wrong bytes: only origins are asked, if there is one
	providers map[string]bool      // by key of the sources that provided bytes: whether with credentials
}

type caller struct {
	name string
	list []Source
}

// Set sets the sources of a caller, in order, replacing its earlier ones.
func (s *Sources) Set(name string, list []Source) {
	list = spread(list)
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
// otherwise as they were set. Mirrors that sent wrong bytes, or all of them if one did for this blob, are left
// out if there is an origin.
func (s *Sources) Order() []Source {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var good, bad, doubted []Source
	origin := false
	seen := map[string]bool{}
	for _, a := range s.callers {
		for _, src := range a.list {
			key := src.Key()
			if seen[key] {
				continue
			}
			seen[key] = true
			origin = origin || !src.Endpoint.isMirror()
			switch {
			case src.Endpoint.isMirror() && (s.doubted || src.Endpoint.AvoidedUntil().After(now)):
				doubted = append(doubted, src)
			case s.until(src).After(now):
				bad = append(bad, src)
			default:
				good = append(good, src)
			}
		}
	}
	if !origin {
		bad = append(bad, doubted...)
	}
	slices.SortStableFunc(bad, func(a, b Source) int { return s.until(a).Compare(s.until(b)) }) // sources of wrong bytes last
	return append(good, bad...)
}

// until returns until when a source is tried after others. The caller holds mu.
func (s *Sources) until(src Source) time.Time {
	t := s.bad[src.Key()]
	if r := s.absent[src.Key()]; r != nil && r.until.After(t) {
		t = r.until
	}
	if r := src.Endpoint.Resting(); r.After(t) {
		t = r
	}
	return t
}

// FirstKey returns the key of the first source, or "".
func (s *Sources) FirstKey() string {
	if order := s.Order(); len(order) > 0 {
		return order[0].Key()
	}
	return ""
}

// Piece returns the Endpoint.Piece of the first source that has one: nodes share the blobs in such pieces. It is 0 if
// none has.
func (s *Sources) Piece() int64 {
	for _, src := range s.Order() {
		if src.Endpoint != nil && src.Endpoint.Piece > 0 {
			return src.Endpoint.Piece
		}
	}
	return 0
}

// Blame records that a source sent wrong bytes. After a mirror, only origins are asked for the blob.
func (s *Sources) Blame(src Source) {
	s.demote(src, wrongFor)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doubted = s.doubted || src.Endpoint.isMirror()
}

// slowed records that a source is slow, if another one may be better. Mirrors remember that themselves.
func (s *Sources) slowed(src Source) {
	if !src.Endpoint.isMirror() {
		s.demote(src, slowFor)
	}
}

func (s *Sources) demote(src Source, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bad == nil {
		s.bad = map[string]time.Time{}
	}
	s.bad[src.Key()] = time.Now().Add(d)
}

// asked records the result of a request that began at a time. One absent range of a mirror is one: it can be that no
// node that has it answered in time. What has not the blob otherwise is asked after others for a while: each request
// would take a slot from one that runs.
func (s *Sources) asked(src Source, began time.Time, o outcome, err error) {
	free := 0
	if src.Endpoint.isMirror() {
		src.Endpoint.leave(began, o, err)
		free = 1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch key := src.Key(); o {
	case good:
		delete(s.absent, key)
	case absent, unasked:
		if s.absent == nil {
			s.absent = map[string]*rest{}
		}
		if s.absent[key] == nil {
			s.absent[key] = &rest{}
		}
		s.absent[key].failed(began, free, err)
	}
}

// better returns why src, which gives rate bytes a second, should be left for a source without known problems
// that was not asked: errSlow, or errCompare if that source may be much faster; or nil.
func (s *Sources) better(src Source, asked map[string]error, rate float64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, a := range s.callers {
		for _, other := range a.list {
			_, was := asked[other.Key()]
			switch {
			case was, s.until(other).After(now), s.doubted && other.Endpoint.isMirror():
				continue
			case s.absent[other.Key()] != nil && !other.Endpoint.isMirror():
				continue // it does not have the blob
			case rate < MinRate:
				return errSlow
			case !src.Endpoint.isMirror(), src.Endpoint.gather() > 0:
				continue
			}
			if why := other.Endpoint.fasterThan(rate); why != nil {
				return why
			}
		}
	}
	return nil
}

// Mirrors returns the mirrors among the sources that provided bytes.
func (s *Sources) Mirrors() (out []Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[string]bool{}
	for _, a := range s.callers {
		for _, src := range a.list {
			_, gave := s.providers[src.Key()]
			if gave && src.Endpoint.isMirror() && !seen[src.Key()] {
				seen[src.Key()] = true
				out = append(out, src)
			}
		}
	}
	return out
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

package pullsecret

import (
	"cmp"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/convert/remote"
	"golang.org/x/net/publicsuffix"
)

// Limits. Tokens of large cloud providers have up to 4 KiB.
const (
	maxNames  = 1024
	maxOfName = 8        // secrets: of tenants that share a repository, and replaced ones
	maxSecret = 16 << 10 // bytes of a user name and a secret
	maxTotal  = 4 << 20  // bytes of all that are not held
	keepFor   = time.Hour
)

// A Secret is a credential given by a caller.
type Secret struct {
	remote.Credentials

	// ID distinguishes the secrets of a name without revealing them. IDs are never reused.
	ID int
}

// Secrets are the secrets of callers, by name. The zero value keeps them in memory only. All
// methods are safe for concurrent use.
type Secrets struct {
	root *os.Root // of sealed secrets; nil: none are on disk
	seal sealer
	log  *slog.Logger

	disk   sync.Mutex             // held while files change; guards the following; locked before mu
	sealed map[string][]Secret    // the content of the files
	wanted func(name string) bool // of Need

	mu    sync.Mutex // guards the following
	names map[string]*entry
	held  map[string]bool // of Need
	last  int             // the last ID
}

// An entry has the secrets of a name.
type entry struct {
	site    string   // see siteOf
	secrets []Secret // newest first
	used    time.Time
	held    bool
}

// size returns the bytes of the secrets.
func (e *entry) size() (n int) {
	for _, s := range e.secrets {
		n += len(s.Username) + len(s.Secret)
	}
	return n
}

// limit drops secrets that are too many: the oldest of the user with the most. Who has many tokens displaces only his
// own, as long as others have a place.
func (e *entry) limit() {
	for len(e.secrets) > maxOfName {
		of, victim := map[string]int{}, 0
		for _, s := range e.secrets {
			of[s.Username]++
		}
		for i, s := range e.secrets {
			if of[s.Username] >= of[e.secrets[victim].Username] {
				victim = i
			}
		}
		e.secrets = slices.Delete(e.secrets, victim, victim+1)
	}
}

// Keep keeps credentials that worked for a name, also on disk if the name is needed there.
// Unrealistically long credentials are not kept.
func (s *Secrets) Keep(name string, c remote.Credentials) {
	if len(c.Username)+len(c.Secret) > maxSecret || !s.keep(name, c) || s.root == nil {
		return
	}
	s.disk.Lock()
	defer s.disk.Unlock()
	if !s.holds(name) || !s.wanted(name) {
		return
	}
	if err := s.save(name, s.peek(name)); err != nil {
		s.log.Error("a new pull secret is kept in memory only", "name", name, "err", err)
	}
}

// keep is Keep in memory. It reports whether something changed.
func (s *Secrets) keep(name string, c remote.Credentials) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.names[name]
	if e == nil || e.old(time.Now()) {
		if s.names == nil {
			s.names = map[string]*entry{}
		}
		e = &entry{site: siteOf(name), held: s.held[name]}
		s.names[name] = e
	}
	e.used = time.Now()
	i := slices.IndexFunc(e.secrets, func(old Secret) bool { return old.Credentials == c })
	if i >= 0 {
		known := e.secrets[i]
		e.secrets = slices.Insert(slices.Delete(e.secrets, i, i+1), 0, known)
		return i > 0
	}
	s.last++
	e.secrets = slices.Insert(e.secrets, 0, Secret{c, s.last})
	e.limit()
	s.evict()
	return true
}

// Of returns the secrets of a name, newest first.
func (s *Secrets) Of(name string) []Secret {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.names[name]
	if e == nil || e.old(time.Now()) {
		return nil
	}
	e.used = time.Now()
	return slices.Clone(e.secrets)
}

// Forget drops the secrets of a name that is readable without them, unless a snapshot needs them.
func (s *Secrets) Forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.names[name]; e != nil && !e.held {
		delete(s.names, name)
	}
}

// old reports whether e has expired.
func (e *entry) old(now time.Time) bool { return !e.held && now.Sub(e.used) > keepFor }

// evict drops expired entries, and further ones until the limits are met. It requires s.mu.
func (s *Secrets) evict() {
	now, total, count := time.Now(), 0, 0
	for name, e := range s.names {
		switch {
		case e.old(now):
			delete(s.names, name)
		case !e.held:
			total += e.size()
			count++
		}
	}
	if count <= maxNames && total <= maxTotal {
		return
	}
	sites := map[string][]string{}
	for name, e := range s.names {
		if !e.held {
			sites[e.site] = append(sites[e.site], name)
		}
	}
	for ; count > maxNames || total > maxTotal; count-- {
		victim := s.victim(sites)
		site := s.names[victim].site
		total -= s.names[victim].size()
		delete(s.names, victim)
		sites[site] = slices.DeleteFunc(sites[site], func(n string) bool { return n == victim })
	}
}

// victim returns the least recently used name of the site with the most names. It requires s.mu.
func (s *Secrets) victim(sites map[string][]string) (name string) {
	most := 0
	for _, names := range sites {
		oldest := ""
		for _, n := range names {
			if oldest == "" || s.names[n].used.Before(s.names[oldest].used) {
				oldest = n
			}
		}
		if len(names) > most || len(names) == most && most > 0 && s.names[oldest].used.Before(s.names[name].used) {
			most, name = len(names), oldest
		}
	}
	return name
}

// siteOf returns the owner of the host in a name: the registrable domain, or the host.
func siteOf(name string) string {
	host, _, _ := strings.Cut(name, "/")
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if site, err := publicsuffix.EffectiveTLDPlusOne(host); err == nil && net.ParseIP(host) == nil {
		return site
	}
	return host
}

// Need sets the names that snapshots need. Secrets of held names are kept, and those for which
// sealed returns true are also written to disk. sealed is called for names with secrets, now and
// for secrets given until the next Need. Secrets of held names that are only on disk are loaded.
// Need returns the first disk error after doing everything else.
func (s *Secrets) Need(held []string, sealed func(name string) bool) error {
	s.disk.Lock()
	defer s.disk.Unlock()
	var first error
	for _, name := range held {
		if s.root != nil && len(s.peek(name)) == 0 {
			first = cmp.Or(first, s.load(name))
		}
	}
	s.hold(held)
	if s.root == nil {
		return first
	}
	s.wanted = sealed
	var keep []string
	for _, name := range held {
		if secrets := s.peek(name); len(secrets) > 0 && sealed(name) {
			keep = append(keep, name)
			first = cmp.Or(first, s.save(name, secrets))
		}
	}
	return cmp.Or(first, s.prune(keep))
}

// hold sets the held names.
func (s *Secrets) hold(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = map[string]bool{}
	for _, n := range names {
		s.held[n] = true
	}
	for name, e := range s.names {
		if e.held && !s.held[name] {
			e.used = time.Now()
		}
		e.held = s.held[name]
	}
	s.evict()
}

// holds reports whether a name is held.
func (s *Secrets) holds(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[name]
}

// peek is Of without counting as a use.
func (s *Secrets) peek(name string) []Secret {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.names[name]; e != nil {
		return slices.Clone(e.secrets)
	}
	return nil
}

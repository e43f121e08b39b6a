package registry

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// A cache keeps values for cacheTime. The zero value works.
type cache[K comparable, V any] struct {
	mu sync.Mutex
	m  map[K]cached[V] // guarded by mu
}

type cached[V any] struct {
	value V
	until time.Time
}

// maxCached limits the values of a cache.
const maxCached = 64

// cacheTime is constant but for tests.
var cacheTime = time.Minute

// get returns the value of k if it is cached.
func (c *cache[K, V]) get(k K) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.m[k]
	if !ok || time.Now().After(e.until) {
		var none V
		return none, false
	}
	return e.value, true
}

// put caches v for k.
func (c *cache[K, V]) put(k K, v V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.m == nil {
		c.m = map[K]cached[V]{}
	}
	for k, e := range c.m {
		if len(c.m) >= maxCached || now.After(e.until) {
			delete(c.m, k)
		}
	}
	c.m[k] = cached[V]{v, now.Add(cacheTime)}
}

// last returns the keys that were put last, newest first, at most n.
func (c *cache[K, V]) last(n int) []K {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	keys := slices.SortedFunc(maps.Keys(c.m), func(a, b K) int { return c.m[b].until.Compare(c.m[a].until) })
	keys = slices.DeleteFunc(keys, func(k K) bool { return now.After(c.m[k].until) })
	return keys[:min(len(keys), n)]
}

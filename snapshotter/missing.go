package snapshotter

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
)

// maxMissing limits the names that are remembered. containerd asks only for names that it has recorded.
const maxMissing = 10_000

// asked are the names that containerd has asked for and that do not exist.
type asked struct {
	walking sync.Mutex // serializes calls of Missing; locked before mu

	mu    sync.Mutex // guards names
	names map[string]bool
}

// Stat returns a snapshot, and remembers names that do not exist.
func (s *Snapshotter) Stat(ctx context.Context, key string) (snapshots.Info, error) {
	info, err := s.overlay.Stat(ctx, key)
	if errdefs.IsNotFound(err) {
		s.asked.mu.Lock()
		defer s.asked.mu.Unlock()
		if len(s.asked.names) < maxMissing {
			s.asked.names[key] = true
		}
	}
	return info, err
}

// Empty reports whether there was no snapshot when the root was opened, and no directory of one: all that containerd
// has recorded then is lost.
func (s *Snapshotter) Empty() bool { return s.empty }

// Missing returns the names of the snapshots that containerd asks for during walk and that do not exist. If
// walk lists the snapshots of a namespace of containerd, these are all that containerd has recorded there and
// that were lost: it asks for each, and does not list them. It refuses their layers as existing, so no image
// with such a layer can be pulled as long as an image, a lease or a mount keeps the record.
func (s *Snapshotter) Missing(walk func() error) ([]string, error) {
	s.asked.walking.Lock()
	defer s.asked.walking.Unlock()
	s.asked.mu.Lock()
	s.asked.names = map[string]bool{}
	s.asked.mu.Unlock()
	err := walk()
	s.asked.mu.Lock()
	defer s.asked.mu.Unlock()
	return slices.Sorted(maps.Keys(s.asked.names)), err
}

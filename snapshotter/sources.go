package snapshotter

import (
	"context"
	"strings"

	"github.com/ballast-dev/ballast/store"
)

// GotFrom records what the model of snapshot id is got from, by the names of sources, for when
// the rest of it has to be fetched later. The snapshot must hold its table (Hold).
func (s *Snapshotter) GotFrom(ctx context.Context, id string, sources []string) error {
	return s.store.SetRefSources(ctx, refName(id), sources)
}

// Shows says whether a reference is that of a snapshot which shows its table: every file of it
// was in place once. Of a pull that goes on, or was broken off, it says no.
func (s *Snapshotter) Shows(r store.Ref) bool {
	id, ok := strings.CutPrefix(r.Name, refPrefix)
	if !ok {
		return false
	}
	m, err := readMarker(s.snapshotDir(id))
	return err == nil && m.Shown && m.Table == r.Table
}

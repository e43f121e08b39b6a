package snapshotter

import (
	"context"
	"strconv"
	"strings"

	"github.com/ballast-dev/ballast/store"
)

// GotFrom records what the model of snapshot id is got from, by the names of sources, for when
// the rest of it has to be fetched later. The snapshot must hold its table (Hold).
func (s *Snapshotter) GotFrom(ctx context.Context, id string, sources []string) error {
	return s.store.SetRefSources(ctx, refName(id), sources)
}

// ViewName returns the name of the view of snapshot id in the store. A model that is exposed there when it is
// shown sees that view alone.
func ViewName(id string) string { return refName(id) }

// ViewNumber returns the name of the view whose directory in the lazy mount (UseLazy) has a number; 0 is
// that of the common view.
func ViewNumber(n uint64) string {
	if n == 0 {
		return ""
	}
	return refName(strconv.FormatUint(n, 10))
}

// view returns the name of the view that the stubs of snapshot id see.
func (m marker) view(id string) string {
	if !m.View {
		return ""
	}
	return refName(id)
}

// ViewOf returns the view in which the snapshot of a reference shows its table.
func (s *Snapshotter) ViewOf(r store.Ref) string {
	id := strings.TrimPrefix(r.Name, refPrefix)
	m, err := readMarker(s.snapshotDir(id))
	if err != nil {
		return r.Name // where nothing is seen that it may not have
	}
	return m.view(id)
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

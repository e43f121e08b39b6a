package snapshotter

import (
	"strconv"
	"strings"

	"github.com/ballast-dev/ballast/store"
)

// ViewName returns the name of the view of snapshot id in the store. A model that is exposed there
// sees that view only.
func ViewName(id string) string { return refName(id) }

// ViewNumber returns the name of the view with directory n in the lazy mount (UseLazy); 0 is the
// common view.
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
		return r.Name // a view without objects that it must not read
	}
	return m.view(id)
}

// Shows reports whether a reference belongs to a snapshot that shows its table, with every file in
// place. During a pull, and after an interrupted one, it is false.
func (s *Snapshotter) Shows(r store.Ref) bool {
	id, ok := strings.CutPrefix(r.Name, refPrefix)
	if !ok {
		return false
	}
	m, err := readMarker(s.snapshotDir(id))
	return err == nil && m.Shown && m.Table == r.Table
}

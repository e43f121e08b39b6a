package snapshotter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store/boltfile"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// labelShows is the label with what a committed snapshot, or an image volume that shows a model,
// shows: the digest of a table, or showsNothing for a blob layer. An image cannot set it, because
// containerd passes on only labels with the prefix "containerd.io/snapshot/".
const (
	labelShows   = "dev.ballast.shows"
	showsNothing = "nothing"
)

// advice is the advice in messages about a damaged snapshot.
const advice = "run \"ballast verify --repair\"; if that does not help, remove its image from containerd and pull it again"

// maxProblems is the number of files reported for one snapshot.
const maxProblems = 20

// A Problem is a difference between a model snapshot and its table.
type Problem struct {
	Snapshot string        // id
	Table    digest.Digest // empty if unknown
	Path     string        // of the file in the model; empty if the problem concerns the whole snapshot
	What     string
}

// shows returns the value of labelShows for a marker, "" for an ordinary snapshot.
func (m marker) shows() string {
	if m.Empty {
		return showsNothing
	}
	return m.Table.String()
}

// withShows adds labelShows to the options of a commit.
func withShows(opts []snapshots.Opt, m marker) []snapshots.Opt {
	if m == (marker{}) {
		return opts
	}
	return append(slices.Clip(opts), func(info *snapshots.Info) error {
		info.Labels = maps.Clone(info.Labels)
		return snapshots.WithLabels(map[string]string{labelShows: m.shows()})(info)
	})
}

// Update changes the labels of a snapshot, except labelShows.
func (s *Snapshotter) Update(ctx context.Context, info snapshots.Info, fieldpaths ...string) (snapshots.Info, error) {
	_, old, err := s.info(ctx, info.Name)
	if err != nil {
		return snapshots.Info{}, err
	}
	info.Labels = maps.Clone(info.Labels)
	if shows, ok := old.Labels[labelShows]; ok {
		if info.Labels == nil {
			info.Labels = map[string]string{}
		}
		info.Labels[labelShows] = shows
	} else {
		delete(info.Labels, labelShows)
	}
	return s.overlay.Update(ctx, info, fieldpaths...)
}

// checkedMarker returns the marker of a committed snapshot. It returns errdefs.ErrDataLoss if the marker
// contradicts the label: mounted as an ordinary directory, stubs would read as zeros.
func (s *Snapshotter) checkedMarker(id, label string) (marker, error) {
	m, err := s.readMarker(id, label)
	switch {
	case err != nil:
		return marker{}, fmt.Errorf("%w; %s", err, advice)
	case label != "" && m.shows() != label:
		return marker{}, fmt.Errorf("snapshot %s shows %s, but its %s is missing or different; %s: %w", id, label, markerName, advice, errdefs.ErrDataLoss)
	}
	return m, nil
}

// readMarker returns the marker of a committed snapshot. A blob layer needs no file.
func (s *Snapshotter) readMarker(id, label string) (marker, error) {
	m, err := readMarker(s.snapshotDir(id))
	if label == showsNothing && m == (marker{}) && err == nil {
		m.Empty = true
	}
	return m, err
}

// A suspect is a committed snapshot, or an image volume, that may show a model, with the three
// records of what it shows.
type suspect struct {
	id, key string
	label   string
	ref     digest.Digest // the table of its reference in the store
	marker  marker
	damage  error // error of reading the marker
}

// shows returns what the snapshot shows: what two of the three records agree on, otherwise the
// first record that is present. It is "" for an ordinary snapshot.
func (p suspect) shows() string {
	ref, m := p.ref.String(), p.marker.shows()
	if ref != "" && ref == m {
		return ref
	}
	return cmp.Or(p.label, ref, m)
}

// suspects returns the snapshots that show a table, or all model and empty snapshots if table is
// empty, sorted by table.
func (s *Snapshotter) suspects(ctx context.Context, table digest.Digest) ([]suspect, error) {
	refs := s.refs()
	var all []suspect
	err := s.meta.WithTransaction(ctx, false, func(ctx context.Context) error {
		return storage.WalkInfo(ctx, func(ctx context.Context, info snapshots.Info) error {
			if info.Kind != snapshots.KindCommitted && info.Labels[labelShows] == "" {
				return nil
			}
			id, _, _, err := storage.GetInfo(ctx, info.Name)
			all = append(all, suspect{id: id, key: info.Name, label: info.Labels[labelShows], ref: refs[id]})
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	ours := all[:0]
	for _, p := range all {
		p.marker, p.damage = s.readMarker(p.id, p.label)
		if shows := p.shows(); (shows != "" || p.damage != nil) && (table == "" || shows == table.String()) {
			ours = append(ours, p)
		}
	}
	slices.SortFunc(ours, func(a, b suspect) int { return cmp.Or(cmp.Compare(a.shows(), b.shows()), cmp.Compare(a.id, b.id)) })
	return ours, nil
}

// Inspect compares some files of each model with its table and repairs the snapshots that differ.
// Those that cannot be repaired cannot be mounted. Call it once before serving, after UseLazy.
func (s *Snapshotter) Inspect(ctx context.Context) error {
	found, err := s.examine(ctx, "", tree.Sample)
	if err != nil {
		return err
	}
	for _, f := range found {
		if f.stale {
			if err := s.repair(ctx, f); err != nil {
				s.log.ErrorContext(ctx, "model cannot be shown as links, and this kernel mounts nothing else; "+advice, "snapshot", f.id, "table", f.shows(), "err", err)
			}
			continue
		}
		if len(f.problems) == 0 {
			if f.label == "" { // lost
				err = errors.Join(err, s.label(ctx, f.key, f.shows()))
			}
			continue
		}
		log := s.log.With("snapshot", f.id, "table", f.problems[0].Table, "path", f.problems[0].Path, "problem", f.problems[0].What)
		if !f.unfit {
			log.WarnContext(ctx, "snapshot cannot be compared with the table of its model")
		} else if err := s.repair(ctx, f); err != nil {
			log.ErrorContext(ctx, "snapshot of a model is damaged and cannot be mounted; "+advice, "err", err)
		} else {
			log.WarnContext(ctx, "damaged snapshot of a model is repaired")
		}
	}
	return err
}

// Verify compares every file of the snapshots of a table with the table, without reading content.
// An empty table means all snapshots, also those that were lost with metadata.
func (s *Snapshotter) Verify(ctx context.Context, table digest.Digest) ([]Problem, error) {
	found, err := s.examine(ctx, table, tree.Compare)
	all := problems(found)
	if err != nil || table != "" || !s.unsure {
		return all, err
	}
	unknown, err := s.unknown(ctx)
	for _, id := range unknown {
		p := Problem{Snapshot: id, What: "its metadata is lost: remove its image from containerd and pull it again"}
		if m, err := readMarker(s.snapshotDir(id)); err == nil {
			p.Table = m.Table
		}
		all = append(all, p)
	}
	return all, err
}

// AwaitWrites waits until the metadata can be written. It does not return while a write hangs.
func (s *Snapshotter) AwaitWrites(ctx context.Context) error {
	undo := errors.New("nothing to write")
	err := s.meta.WithTransaction(ctx, true, func(context.Context) error { return undo })
	if errors.Is(err, undo) {
		return nil
	}
	return err
}

// Refresh repairs the snapshots of a table: it replaces the files that differ from the table or the
// store. Files that a container has open stay as they are until they are closed.
func (s *Snapshotter) Refresh(ctx context.Context, table digest.Digest) error {
	found, err := s.examine(ctx, table, tree.Compare)
	for _, f := range found {
		err = errors.Join(err, s.repair(ctx, f))
	}
	return err
}

// Health has the known problems of the snapshots.
type Health struct {
	Aside    []string  // files of damaged metadata
	Unknown  []string  // ids of directories without metadata
	Problems []Problem // differences found in some files of each model
}

// Health returns the known problems of the snapshots.
func (s *Snapshotter) Health(ctx context.Context) (Health, error) {
	found, err := s.examine(ctx, "", tree.Sample)
	if err != nil {
		return Health{}, err
	}
	d := Health{Problems: problems(found)}
	if d.Aside, err = boltfile.SetAside(filepath.Join(s.root, metadataName)); err != nil {
		return Health{}, err
	}
	d.Unknown, err = s.unknown(ctx)
	return d, err
}

// unknown returns the names of directories without metadata, except those of removed snapshots, which wait
// for the next Cleanup.
func (s *Snapshotter) unknown(ctx context.Context) ([]string, error) {
	all, err := s.orphans(ctx, nil)
	return slices.DeleteFunc(all, func(id string) bool {
		if _, leaving := s.leaving.Load(id); leaving {
			return true
		}
		_, err := os.Lstat(s.snapshotDir(id)) // removed by now?
		return errors.Is(err, fs.ErrNotExist)
	}), err
}

// examined is a suspect with its problems.
type examined struct {
	suspect
	problems []Problem
	unfit    bool // it may show wrong bytes
	stale    bool // it is complete, and has stubs, which this kernel cannot mount
}

func problems(found []examined) (all []Problem) {
	for _, f := range found {
		all = append(all, f.problems...)
	}
	return all
}

// A comparison is tree.Compare or tree.Sample.
type comparison func(dir string, o tree.Objects, b tree.Backend, files []filetable.File) ([]tree.Problem, error)

// examine compares the snapshots of a table, or all if table is empty.
func (s *Snapshotter) examine(ctx context.Context, table digest.Digest, compare comparison) ([]examined, error) {
	suspects, err := s.suspects(ctx, table)
	if err != nil {
		return nil, err
	}
	var found []examined
	var files []filetable.File // of the last table; suspects are sorted by table
	var ferr error
	for i, p := range suspects {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		f := examined{suspect: p}
		f.checkMarker()
		if t := digest.Digest(p.shows()); t.Validate() == nil {
			if i == 0 || suspects[i-1].shows() != p.shows() {
				files, ferr = s.placed(t, s.store.Views.Listing)
			}
			if f.marker.Show == tree.Stubs && s.noStubs != nil {
				s.checkStubs(&f, t)
			} else {
				s.checkFiles(&f, compare, files, ferr)
			}
		}
		found = append(found, f)
	}
	return found, nil
}

func (f *examined) report(path, what string) {
	p := Problem{Snapshot: f.id, Path: path, What: what}
	if t := digest.Digest(f.shows()); t.Validate() == nil {
		p.Table = t
	}
	f.problems = append(f.problems, p)
}

// checkMarker compares the three records of what the snapshot shows.
func (f *examined) checkMarker() {
	shows := f.shows()
	switch {
	case f.damage != nil:
		f.report("", f.damage.Error())
	case f.marker.shows() != shows || f.label != "" && f.label != shows:
		f.report("", fmt.Sprintf("marker, metadata and store disagree about what it shows: %q, %q, %q", f.marker.shows(), f.label, f.ref))
	case f.marker.Table != "" && !f.marker.Shown:
		f.report("", "it is not completely shown")
	}
	f.unfit = len(f.problems) > 0
	f.marker.View = f.marker.View || f.marker.shows() != shows // if it is unknown: the view has no files of others
}

// checkStubs marks a complete model that this kernel cannot mount, to be shown as links. A view must have all of it,
// since links show objects whatever the view has.
func (s *Snapshotter) checkStubs(f *examined, table digest.Digest) {
	m := f.marker
	m.Show = tree.Links
	if _, err := s.filesOf(f.id, m, table); err == nil {
		f.stale, f.marker = true, m
	}
}

// checkFiles compares the files of a model with its table. ferr is the error of reading the table.
func (s *Snapshotter) checkFiles(f *examined, compare comparison, files []filetable.File, ferr error) {
	dir, b := s.upperDir(f.id), cmp.Or(f.marker.Show, s.backend)
	var problems []tree.Problem
	err := ferr
	if err == nil {
		problems, err = compare(dir, s.objects, b, files)
	} else if b == tree.Stubs {
		var bare error
		problems, bare = tree.Bare(dir)
		err = errors.Join(err, bare)
	}
	f.unfit = f.unfit || len(problems) > 0
	if err != nil {
		f.report("", "it cannot be compared with its table: "+err.Error())
	}
	for i, q := range problems {
		if i == maxProblems {
			f.report("", fmt.Sprintf("%d more files differ", len(problems)-i))
			return
		}
		f.report(q.Path, q.What)
	}
}

// repair makes a snapshot show its table and makes its records agree. An unfit snapshot cannot be
// mounted until it is repaired.
func (s *Snapshotter) repair(ctx context.Context, p examined) error {
	shows, dir := p.shows(), s.snapshotDir(p.id)
	if shows == showsNothing {
		if err := s.markEmpty(p.id, errdefs.ErrDataLoss); err != nil {
			return err
		}
		return s.label(ctx, p.key, shows)
	}
	table := digest.Digest(shows)
	if err := table.Validate(); err != nil {
		return fmt.Errorf("snapshot %s: the table that it shows is unknown: %w", p.id, errdefs.ErrDataLoss)
	}
	if p.unfit || p.stale {
		if err := writeMarker(dir, marker{Table: table, Show: cmp.Or(p.marker.Show, s.backend), View: p.marker.View}); err != nil {
			return err
		}
	}
	if p.ref != table {
		if err := s.store.AddRef(refName(p.id), table, time.Time{}); err != nil {
			return err
		}
	}
	if err := s.show(ctx, p.id, table); err != nil {
		return err
	}
	return s.label(ctx, p.key, shows)
}

// label sets labelShows of a snapshot.
func (s *Snapshotter) label(ctx context.Context, key, shows string) error {
	_, err := s.overlay.Update(ctx, snapshots.Info{Name: key, Labels: map[string]string{labelShows: shows}}, "labels."+labelShows)
	return err
}

package snapshotter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
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

// labelShows says in overlay's metadata what the marker of a committed snapshot, or of an image volume that
// shows a model itself, says: the table of a model, or showsNothing for a blob layer. An image can not set
// it: containerd hands on labels that begin with "containerd.io/snapshot/".
const (
	labelShows   = "dev.ballast.shows"
	showsNothing = "nothing"
)

// cure is what to do about a snapshot that is not well.
const cure = "run \"ballast verify --repair\"; if that does not help, remove its image from containerd and pull it again"

// maxProblems is how many files of one snapshot are named.
const maxProblems = 20

// A Problem is something about a model snapshot that is not as its table says.
type Problem struct {
	Snapshot string        // id
	Table    digest.Digest // empty if it is not known
	Path     string        // below the top of the model, empty if it is about all of it
	What     string
}

// shows returns what labelShows is to say for a marker, "" if the snapshot is not ours.
func (m marker) shows() string {
	if m.Empty {
		return showsNothing
	}
	return m.Table.String()
}

// withShows adds the label to what a snapshot is committed with.
func withShows(opts []snapshots.Opt, m marker) []snapshots.Opt {
	if m == (marker{}) {
		return opts
	}
	return append(slices.Clip(opts), func(info *snapshots.Info) error {
		info.Labels = maps.Clone(info.Labels)
		return snapshots.WithLabels(map[string]string{labelShows: m.shows()})(info)
	})
}

// Update changes the labels of a snapshot, but not ours.
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

// trusted returns the marker of a committed snapshot. It returns errdefs.ErrDataLoss if the marker
// is not what the metadata says: mounted as an ordinary directory, stubs would read as zeros.
func (s *Snapshotter) trusted(id, label string) (marker, error) {
	m, err := s.readMarker(id, label)
	switch {
	case err != nil:
		return marker{}, fmt.Errorf("%w; %s", err, cure)
	case label != "" && m.shows() != label:
		return marker{}, fmt.Errorf("snapshot %s is to show %s, but its %s is lost or says otherwise; %s: %w", id, label, markerName, cure, errdefs.ErrDataLoss)
	}
	return m, nil
}

// readMarker returns the marker of a committed snapshot. That of a blob layer needs no file.
func (s *Snapshotter) readMarker(id, label string) (marker, error) {
	m, err := readMarker(s.snapshotDir(id))
	if label == showsNothing && m == (marker{}) && err == nil {
		m.Empty = true
	}
	return m, err
}

// A suspect is a snapshot of ours, committed or an image volume, with all that says what it shows.
type suspect struct {
	id, key string
	label   string
	ref     digest.Digest // what the store holds for it
	marker  marker
	damage  error // of the marker
}

// shows returns what the snapshot is to show: what two of three say, otherwise the first that says
// anything. It is "" for an ordinary snapshot.
func (p suspect) shows() string {
	ref, m := p.ref.String(), p.marker.shows()
	if ref != "" && ref == m {
		return ref
	}
	return cmp.Or(p.label, ref, m)
}

// suspects returns the snapshots of ours, committed or image volumes, that show a table; all, if it is empty.
func (s *Snapshotter) suspects(ctx context.Context, table digest.Digest) ([]suspect, error) {
	refs, err := s.refs(ctx)
	if err != nil {
		return nil, err
	}
	var all []suspect
	err = s.meta.WithTransaction(ctx, false, func(ctx context.Context) error {
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

// Inspect looks at some files of each model, and mends the snapshots that are not as their tables
// say. What can not be mended can not be mounted. Call it once before serving, after UseLazy.
func (s *Snapshotter) Inspect(ctx context.Context) error {
	found, err := s.examine(ctx, "", tree.Sample)
	if err != nil {
		return err
	}
	for _, f := range found {
		if len(f.problems) == 0 {
			if f.label == "" { // made before there were labels
				err = errors.Join(err, s.label(ctx, f.key, f.shows()))
			}
			continue
		}
		log := s.log.With("snapshot", f.id, "table", f.problems[0].Table, "path", f.problems[0].Path, "problem", f.problems[0].What)
		if !f.unfit {
			log.WarnContext(ctx, "snapshot of a model can not be compared with its table")
		} else if err := s.mend(ctx, f); err != nil {
			log.ErrorContext(ctx, "snapshot of a model is not well and can not be mounted; "+cure, "err", err)
		} else {
			log.WarnContext(ctx, "snapshot of a model was not well and is mended")
		}
	}
	return err
}

// Verify compares the snapshots of a table (of all, if it is empty) with it, every file, without
// reading content.
func (s *Snapshotter) Verify(ctx context.Context, table digest.Digest) ([]Problem, error) {
	found, err := s.examine(ctx, table, tree.Compare)
	return problems(found), err
}

// Refresh mends the snapshots that show a table, or were to show it: a file that is not what the
// table and the store say is replaced. What a container has open stays as it was until it is closed.
func (s *Snapshotter) Refresh(ctx context.Context, table digest.Digest) error {
	found, err := s.examine(ctx, table, tree.Compare)
	for _, f := range found {
		if err == nil {
			err = s.mend(ctx, f)
		}
	}
	return err
}

// Doubts are what is known to be wrong with the snapshots.
type Doubts struct {
	Aside    []string  // paths of metadata that was set aside because it was damaged
	Unknown  []string  // ids of directories that the metadata does not know
	Problems []Problem // found by looking at some files of each model
}

// Doubts returns what is wrong.
func (s *Snapshotter) Doubts(ctx context.Context) (Doubts, error) {
	found, err := s.examine(ctx, "", tree.Sample)
	if err != nil {
		return Doubts{}, err
	}
	d := Doubts{Problems: problems(found)}
	if d.Aside, err = boltfile.SetAside(filepath.Join(s.root, metadataName)); err != nil {
		return Doubts{}, err
	}
	d.Unknown, err = s.gone(ctx, nil)
	return d, err
}

// examined is a suspect with what was found.
type examined struct {
	suspect
	problems []Problem
	unfit    bool // it would show wrong bytes, or is not known to show the right ones
}

func problems(found []examined) (all []Problem) {
	for _, f := range found {
		all = append(all, f.problems...)
	}
	return all
}

// A comparison is tree.Compare or tree.Sample.
type comparison func(dir string, o tree.Objects, b tree.Backend, files []filetable.File) ([]tree.Problem, error)

// examine looks at the snapshots of a table (of all, if it is empty).
func (s *Snapshotter) examine(ctx context.Context, table digest.Digest, compare comparison) ([]examined, error) {
	suspects, err := s.suspects(ctx, table)
	if err != nil {
		return nil, err
	}
	var found []examined
	var files []filetable.File // of the last table: suspects are in the order of their tables
	var ferr error
	for i, p := range suspects {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		f := examined{suspect: p}
		f.checkMarker()
		if t := digest.Digest(p.shows()); t.Validate() == nil {
			if i == 0 || suspects[i-1].shows() != p.shows() {
				files, ferr = s.store.Listing(ctx, t)
			}
			s.checkFiles(&f, compare, files, ferr)
		}
		found = append(found, f)
	}
	return found, nil
}

func (f *examined) say(path, what string) {
	p := Problem{Snapshot: f.id, Path: path, What: what}
	if t := digest.Digest(f.shows()); t.Validate() == nil {
		p.Table = t
	}
	f.problems = append(f.problems, p)
}

// checkMarker looks whether all agree what the snapshot shows.
func (f *examined) checkMarker() {
	shows := f.shows()
	switch {
	case f.damage != nil:
		f.say("", f.damage.Error())
	case f.marker.shows() != shows || f.label != "" && f.label != shows:
		f.say("", fmt.Sprintf("marker, metadata and store do not agree what it shows: %q, %q, %q", f.marker.shows(), f.label, f.ref))
	case f.marker.Table != "" && !f.marker.Shown:
		f.say("", "it was not shown whole")
	}
	f.unfit = len(f.problems) > 0
}

// checkFiles compares the files of a model. ferr says why they are not known.
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
		f.say("", "it can not be compared with its table: "+err.Error())
	}
	for i, q := range problems {
		if i == maxProblems {
			f.say("", fmt.Sprintf("%d more files are not well", len(problems)-i))
			return
		}
		f.say(q.Path, q.What)
	}
}

// mend makes a snapshot show what it is to show, and has all say the same. If it is unfit, it can
// not be mounted until that is done.
func (s *Snapshotter) mend(ctx context.Context, p examined) error {
	shows, dir := p.shows(), s.snapshotDir(p.id)
	if shows == showsNothing {
		if err := s.markEmpty(p.id, errdefs.ErrDataLoss); err != nil {
			return err
		}
		return s.label(ctx, p.key, shows)
	}
	table := digest.Digest(shows)
	if err := table.Validate(); err != nil {
		return fmt.Errorf("snapshot %s: it is not known what it showed: %w", p.id, errdefs.ErrDataLoss)
	}
	if p.unfit {
		if err := writeMarker(dir, marker{Table: table, Show: cmp.Or(p.marker.Show, s.backend)}); err != nil {
			return err
		}
	}
	if p.ref != table {
		if err := s.store.AddRef(ctx, refName(p.id), table, time.Time{}); err != nil {
			return err
		}
	}
	if err := s.show(ctx, p.id, table); err != nil {
		return err
	}
	return s.label(ctx, p.key, shows)
}

// label has the metadata say what a snapshot shows.
func (s *Snapshotter) label(ctx context.Context, key, shows string) error {
	_, err := s.overlay.Update(ctx, snapshots.Info{Name: key, Labels: map[string]string{labelShows: shows}}, "labels."+labelShows)
	return err
}

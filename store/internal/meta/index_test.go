package meta

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"
)

// answers are the results of all queries of the index, in a form that does not depend on the order of
// changes.
type answers struct {
	Usage      Usage
	Unneeded   map[digest.Digest]int64
	Attributed Sized // the sum over the references
	Unresolved []string
	Tables     map[digest.Digest][]digest.Digest // that need each object
	Images     []Image
	Shares     map[digest.Digest]Share
}

func ask(t *testing.T, db *DB, universe []digest.Digest) (a answers) {
	t.Helper()
	var err error
	if a.Usage, err = db.Usage(Roots{}); err != nil {
		t.Fatal(err)
	}
	a.Unneeded = map[digest.Digest]int64{}
	for _, o := range db.index.unneeded(nil) {
		a.Unneeded[o.Digest] = o.Size
	}
	first := map[digest.Digest]string{}
	for _, r := range db.Refs("") {
		a.Attributed.Size += r.Size
		if r.Size > 0 && first[r.Table] != "" {
			t.Errorf("two references to %s have a size: %s and %s", r.Table, first[r.Table], r.Name)
		}
		if r.Size > 0 {
			first[r.Table] = r.Name
		}
	}
	for _, r := range db.Unresolved() {
		a.Unresolved = append(a.Unresolved, r.Name)
		if of := db.UnresolvedOf(r.Table); !slices.ContainsFunc(of, func(o Ref) bool { return o.Name == r.Name }) {
			t.Errorf("unresolved references to %s: got %+v, want %s in it", r.Table, of, r.Name)
		}
	}
	a.Tables = map[digest.Digest][]digest.Digest{}
	for _, d := range universe {
		if tables := db.index.tablesOf(d); len(tables) > 0 {
			a.Tables[d] = tables
		}
	}
	a.Images = db.Images()
	a.Shares = db.Shares(Roots{})
	for model, want := range a.Shares {
		if got := db.Share(model, Roots{}); got != want {
			t.Errorf("share of %s alone: got %+v, want %+v", model, got, want)
		}
	}
	return a
}

// count computes the answers from all records.
func count(t *testing.T, db *DB) (a answers) {
	t.Helper()
	needed, shared, counts := map[digest.Digest]bool{}, map[digest.Digest]bool{}, map[digest.Digest]bool{}
	known, sizes := map[digest.Digest]Table{}, map[digest.Digest]int64{}
	needs := map[digest.Digest]map[digest.Digest]bool{} // of models
	need := func(model digest.Digest, objects ...digest.Digest) {
		if needs[model] == nil {
			needs[model] = map[digest.Digest]bool{}
		}
		for _, o := range objects {
			needs[model][o] = true
		}
	}
	imaged := map[digest.Digest]bool{}
	a.Unneeded, a.Tables = map[digest.Digest]int64{}, map[digest.Digest][]digest.Digest{}
	err := db.view(func(tx *txn) error {
		return errors.Join(
			each(tx, bucketTables, func(d digest.Digest, rec Table) error {
				known[d] = rec
				own := false
				for _, o := range rec.Objects {
					a.Tables[o] = append(a.Tables[o], d)
					own = own || o == d
				}
				if !own {
					rec.Objects = append(rec.Objects, d)
					a.Tables[d] = append(a.Tables[d], d)
				}
				if rec.Complete {
					a.Usage.Logical += rec.Logical
					for _, o := range rec.Objects {
						shared[o] = true
					}
				}
				return nil
			}),
			each(tx, bucketImages, func(_ string, im Image) error {
				for _, d := range im.Documents() {
					needed[d] = true
				}
				imaged[im.Table], imaged[im.Manifest] = true, true
				need(im.Manifest, append(im.Documents(), known[im.Table].Objects...)...)
				return nil
			}),
			each(tx, bucketRefs, func(name string, r Ref) error {
				rec, ok := known[r.Table]
				if r.live(time.Now()) && (!ok || rec.Broken && rec.Partly) {
					a.Unresolved = append(a.Unresolved, name)
				}
				if r.live(time.Now()) && !imaged[r.Table] {
					need(r.Table, append(rec.Objects, r.Table)...)
				}
				for _, o := range append(rec.Objects, r.Table) {
					needed[o], counts[o] = true, true
				}
				return nil
			}),
			each(tx, bucketObjects, func(k string, o Object) error {
				d := key([]byte(k)).digest()
				a.Usage.Objects++
				sizes[d] = o.Size
				a.Usage.Unique += o.Size
				if shared[d] {
					a.Usage.Shared += o.Size
				}
				if counts[d] {
					a.Attributed.Size += o.Size
				}
				if !needed[d] {
					a.Usage.Reclaimable += o.Size
					a.Unneeded[d] = o.Size
				}
				return nil
			}),
		)
	})
	if err != nil {
		t.Fatal(err)
	}
	a.Shares = map[digest.Digest]Share{}
	for model, objects := range needs {
		for o := range objects {
			size, exists := sizes[o]
			if !exists {
				continue
			}
			s := a.Shares[model]
			s.Own += size
			for other, theirs := range needs {
				if other != model && theirs[o] {
					s.Own, s.Shared = s.Own-size, s.Shared+size
					break
				}
			}
			a.Shares[model] = s
		}
	}
	return a
}

// TestIndexFollowsRecords checks that after any operations the index agrees with the records, and with an index that
// is built from them.
func TestIndexFollowsRecords(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			db, err := Open(filepath.Join(t.TempDir(), "store.db"), Options{Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			db.bolt.NoSync = true
			w := world{rand.New(rand.NewPCG(seed, 1)), db}
			for i := range 200 {
				what, err := w.step()
				if err != nil {
					t.Fatalf("step %d, %s: %v", i, what, err)
				}
				w.compare(t, fmt.Sprintf("step %d, %s", i, what))
			}
			if err := db.load(); err != nil {
				t.Fatal(err)
			}
			w.compare(t, "made again")
		})
	}
}

// A world makes random changes.
type world struct {
	*rand.Rand
	db *DB
}

const worldSize = 12

func (w world) digest() digest.Digest { return number(w.IntN(worldSize)) }

func (w world) name() string { return fmt.Sprint("pin/", w.IntN(6)) }

func (w world) table() Table {
	t := Table{Logical: int64(w.IntN(100)), Partly: w.IntN(4) == 0}
	for range w.IntN(5) {
		t.Objects = append(t.Objects, w.digest())
	}
	return t
}

func (w world) step() (what string, err error) {
	db := w.db
	switch w.IntN(12) {
	case 0, 1:
		d := w.digest()
		return "Arrive", db.Arrive(Arrival{Files: []File{{Digest: d, Size: int64(d.Encoded()[0])}}})
	case 2, 3:
		var expires time.Time
		if w.IntN(4) == 0 {
			expires = time.Now().Add(time.Duration(w.IntN(3)-1) * time.Hour)
		}
		_, err := db.AddRef(w.name(), w.digest(), expires)
		return "AddRef", ignore(err)
	case 4, 5:
		return "DropRefs", db.DropRefs(w.name(), w.name())
	case 6:
		return "PutTable", db.PutTable(w.digest(), w.table())
	case 7, 8:
		_, err := db.CompleteTable(w.digest(), w.table())
		return "CompleteTable", ignore(err)
	case 9:
		return "Lose", db.Lose(w.digest(), w.digest())
	case 10:
		if w.IntN(2) == 0 {
			return "RemoveImage", ignore(db.RemoveImage(w.digest()))
		}
		return "PutImage", db.PutImage(Image{
			Manifest: w.digest(), Config: w.digest(), Table: w.digest(), Refs: []string{w.name()}, Origin: filetable.Origin{Digest: w.digest()},
		})
	default:
		if _, err := db.Expire(false); err != nil {
			return "Expire", err
		}
		_, _, err := db.Evict(Roots{}, func(total int64) int64 { return total / 2 }, false)
		return "Evict", ignore(err)
	}
}

// ignore drops the errors that an operation is documented to return.
func ignore(err error) error {
	if errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err) {
		return nil
	}
	return err
}

func (w world) compare(t *testing.T, when string) {
	t.Helper()
	var all []digest.Digest
	for i := range worldSize {
		all = append(all, number(i))
	}
	lookUp(t, w.db, all)
	got, want := ask(t, w.db, all), count(t, w.db)
	want.Images = got.Images
	sorted := cmp.Transformer("sort", func(in []digest.Digest) map[digest.Digest]bool {
		out := map[digest.Digest]bool{}
		for _, d := range in {
			out[d] = true
		}
		return out
	})
	if diff := cmp.Diff(want, got, sorted); diff != "" {
		t.Fatalf("%s: index and records differ (-records +index):\n%s", when, diff)
	}
}

// lookUp compares the result of a lookup by digest with that of a scan.
func lookUp(t *testing.T, db *DB, universe []digest.Digest) {
	t.Helper()
	images, refs := db.Images(), db.Refs("")
	var idle []digest.Digest
	for _, im := range images {
		if !slices.ContainsFunc(refs, func(r Ref) bool { return r.Table == im.Table && r.live(time.Now()) }) {
			idle = append(idle, im.Manifest)
		}
	}
	var got []digest.Digest
	for _, i := range db.Idle(nil) {
		got = append(got, i.Manifest)
	}
	slices.Sort(idle)
	slices.Sort(got)
	if !slices.Equal(idle, got) {
		t.Errorf("images that nothing refers to: %s, want %s", got, idle)
	}
	for _, d := range universe {
		tables := append(db.index.tablesOf(d), d)
		var with, made []Image
		for _, im := range images {
			if im.Config == d || slices.Contains(tables, im.Table) {
				with = append(with, im)
			}
			if im.Origin.Digest == d {
				made = append(made, im)
			}
		}
		var of []Ref
		for _, r := range refs {
			if r.Table == d {
				of = append(of, r)
			}
		}
		slices.SortFunc(of, byAge)
		none := cmpopts.EquateEmpty()
		if diff := cmp.Diff(with, db.ImagesWith(d), none); diff != "" {
			t.Errorf("images with %s (-all +index):\n%s", d, diff)
		}
		if diff := cmp.Diff(made, db.ImagesByOrigin(d), none); diff != "" {
			t.Errorf("images made from %s (-all +index):\n%s", d, diff)
		}
		if diff := cmp.Diff(of, db.RefsOf(d), none); diff != "" {
			t.Errorf("references to %s (-all +index):\n%s", d, diff)
		}
	}
	for _, want := range refs {
		if got, err := db.Ref(want.Name); err != nil || !cmp.Equal(got, want) {
			t.Errorf("reference %s: %+v, %v, want %+v", want.Name, got, err, want)
		}
	}
}

// TestIndexAfterFailure checks that a failed transaction does not change the index.
func TestIndexAfterFailure(t *testing.T) {
	db, err := Open(filepath.Join(t.TempDir(), "store.db"), Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	failed := errors.New("failed")
	err = db.update(func(tx *txn) error {
		return errors.Join(put(tx, bucketObjects, number(1), Object{Size: 7}), failed)
	})
	if !errors.Is(err, failed) {
		t.Fatalf("got %v", err)
	}
	if u, err := db.Usage(Roots{}); u != (Usage{}) || err != nil {
		t.Errorf("usage %+v, %v", u, err)
	}
	var there bool
	_ = db.bolt.View(func(tx *bbolt.Tx) error {
		there = tx.Bucket(bucketObjects).Get(recordKey(bucketObjects, number(1))) != nil
		return nil
	})
	if there {
		t.Error("the record is there")
	}
}

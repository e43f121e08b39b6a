package meta

import (
	"errors"
	"flag"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

var benchObjects = flag.Int("objects", 100_000, "the number of objects of BenchmarkOpen")

// BenchmarkOpen opens a database of many objects, all of them needed by tables of a thousand, with a warm page cache.
func BenchmarkOpen(b *testing.B) {
	const each = 1000 // objects of a table
	path := filepath.Join(b.TempDir(), "store.db")
	open := func() *DB {
		db, err := Open(path, Options{Log: quiet})
		if err != nil {
			b.Fatal(err)
		}
		return db
	}
	db := open()
	db.bolt.NoSync = true
	for first := 0; first < *benchObjects; first += each {
		a, t := Arrival{}, Table{}
		for i := first; i < first+each; i++ {
			a.Files = append(a.Files, File{Digest: number(i), Size: 4 << 10})
			t.Objects = append(t.Objects, number(i))
		}
		slices.Sort(t.Objects)
		table := number(-1 - first)
		err := db.Arrive(a)
		if err == nil {
			_, err = db.CompleteTable(table, t)
		}
		if err == nil {
			_, err = db.AddRef("pin/"+table.String(), table, time.Time{})
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	if err := errors.Join(db.bolt.Sync(), db.Close()); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	var cpu time.Duration
	for b.Loop() {
		before := ownCPU()
		db := open()
		cpu += ownCPU() - before
		b.StopTimer()
		if u, err := db.Usage(Roots{}); u.Objects != int64(*benchObjects) || err != nil {
			b.Fatalf("%+v, %v", u, err)
		}
		if err := db.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed())/float64(b.N**benchObjects), "ns/object")
	b.ReportMetric(float64(cpu)/float64(b.N**benchObjects), "CPU-ns/object") // on a busy machine
}

// ownCPU returns the CPU time of the process.
func ownCPU() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// FuzzRecord checks that a value that can be read is written such that the same is read again, and that the index reads
// the same of it.
func FuzzRecord(f *testing.F) {
	used := time.Date(2026, 11, 22, 1, 2, 3, 456789, time.UTC)
	for _, v := range []any{
		Object{Size: 1 << 40, Used: used},
		Object{Size: 7, Used: used, Private: []string{"host/name", "other:5000/na-me_2"}},
		Table{Objects: []digest.Digest{number(1), number(2)}, Logical: 12, Complete: true},
		Table{Objects: []digest.Digest{number(3)}, Partly: true, Broken: true},
		Table{},
	} {
		p, err := encode(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(p)
	}
	f.Add(append(make([]byte, 16), "a\n\nb"...)) // a name without a byte
	f.Fuzz(func(t *testing.T, p []byte) {
		again[Object](t, p)
		table, ok := again[Table](t, p)
		n, err := parse[needing](bucketTables, nil, p)
		if ok != (err == nil) {
			t.Fatalf("table %t, index %v", ok, err)
		}
		got := n.Table
		for _, k := range n.keys {
			got.Objects = append(got.Objects, k.digest())
		}
		if diff := cmp.Diff(table, got); diff != "" {
			t.Errorf("(-record +index):\n%s", diff)
		}
	})
}

// again reads a value, writes it, and reads that; false if it cannot be read.
func again[T any](t *testing.T, p []byte) (v T, ok bool) {
	t.Helper()
	v, err := parse[T](nil, nil, p)
	if err != nil {
		return v, false
	}
	written, err := encode(v)
	if errdefs.IsInvalidArgument(err) { // put cannot have written it
		return v, true
	}
	if err != nil {
		t.Fatalf("%T: %v", v, err)
	}
	if w, err := parse[T](nil, nil, written); err != nil || !cmp.Equal(v, w) {
		t.Errorf("%x is read as %+v, and written as %x, which is %+v, %v", p, v, written, w, err)
	}
	return v, true
}

// What could not be read as it was is not recorded: digests of another algorithm, and an object whose private names
// would be others, or none, which is everybody.
func TestNotRecorded(t *testing.T) {
	sha512, upper := "sha512:"+strings.Repeat("0", 128), strings.ToUpper(number(1).String())
	for _, d := range []digest.Digest{"", "x", digest.Digest(sha512), digest.Digest(upper)} {
		if p, err := encode(Table{Objects: []digest.Digest{d}}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %x, %v", d, p, err)
		}
	}
	for _, n := range []string{"", "a\nb"} {
		if p, err := encode(Object{Private: []string{n}}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %x, %v", n, p, err)
		}
	}
}

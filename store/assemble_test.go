package store_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/storetest/disktest"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// fragments returns n blobs, each with a header that is not part of any file.
func fragments(n, size int) (blobs [][]byte) {
	for i := range n {
		blobs = append(blobs, append(bytes.Repeat([]byte{byte(i)}, 100), storetest.Random(uint64(100+i), size+i)...))
	}
	return blobs
}

// merged adds a file that consists of all blobs without their headers, and returns its content.
func merged(b *storetest.Builder, path, header string, blobs [][]byte) string {
	parts := []storetest.Part{{Inline: []byte(header)}}
	want := header
	for _, p := range blobs {
		parts = append(parts, storetest.Part{Blob: p, Off: 100, N: len(p) - 100})
		want += string(p[100:])
	}
	b.Parts(path, 0o644, parts...)
	return want
}

// TestAssembledOnTheDisk: a file whose sync has failed is put together anew.
func TestAssembledOnTheDisk(t *testing.T) {
	disk := disktest.New(t, "ext4", t.TempDir(), 256<<20)
	s := storetest.Open(t, filepath.Join(disk.Dir, "store"), store.Options{})
	defer s.Close()
	blobs := fragments(2, 300<<10)
	b := storetest.NewBuilder("x")
	want := merged(b, "w", "header", blobs)
	table := b.Put(t, s)
	unix.Sync()
	var once sync.Once
	s.BeforeFetching(func(digest.Digest) { once.Do(func() { disk.FailWrites(2) }) })
	o := store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(blobs...))}
	if err := s.Hydrate(t.Context(), table, o); err == nil {
		t.Fatal("the disk did not fail")
	}
	disk.FailWrites(0)
	if err := s.Hydrate(t.Context(), table, o); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(s.ObjectsDir(), store.ObjectName(digest.FromString(want))))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(f); err != nil || string(got) != want {
		t.Errorf("the complete file has other bytes on the disk, %v", err)
	}
}

func TestHydrateAssemblesFiles(t *testing.T) {
	for _, tc := range []struct {
		name    string
		n, size int
	}{{"small", 300, 2000}, {"large", 3, 9 << 20}} {
		t.Run(tc.name, func(t *testing.T) {
			s := storetest.Open(t, t.TempDir(), store.Options{})
			blobs := fragments(tc.n, tc.size)
			b := storetest.NewBuilder("x")
			want := map[string]string{}
			want["a"] = merged(b, "a", "header of a", blobs)
			want["b"] = merged(b, "b", "b", blobs[1:3]) // the same ranges again
			want["c"] = merged(b, "c", "header of a", blobs)
			table := b.Inline("d", []byte("d"), 0o644).Put(t, s)
			f := storetest.NewFetcher(blobs...)
			if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
				t.Fatal(err)
			}
			got := content(t, s, table)
			for k, v := range want {
				if got[k] != v {
					t.Errorf("%s: %d bytes, want %d, or other bytes", k, len(got[k]), len(v))
				}
			}
			for _, p := range blobs {
				if n := f.Sent(digest.FromBytes(p)); n != int64(len(p)) {
					t.Fatalf("%d bytes of a blob of %d were fetched", n, len(p))
				}
			}
			if got := leftovers(t, s); len(got) > 0 {
				t.Errorf("left over: %v", got)
			}
			if err := s.Hydrate(t.Context(), table, store.HydrateOptions{}); err != nil {
				t.Errorf("once more, without anybody to ask: %v", err)
			}
			if bad, err := s.Check(t.Context(), "", nil); err != nil || len(bad) > 0 {
				t.Errorf("check: %v %v", bad, err)
			}
		})
	}
}

// TestFragmentsComeInOrder checks that fragments are fetched in the order in which the file is hashed,
// whatever their sizes.
func TestFragmentsComeInOrder(t *testing.T) {
	const n, together = 300, 96 // targets that are fetched concurrently
	var blobs [][]byte
	for i := range n {
		blobs = append(blobs, storetest.Random(uint64(i), 5000-10*i))
	}
	s := storetest.Open(t, t.TempDir(), store.Options{})
	b := storetest.NewBuilder("x")
	merged(b, "w", "header", blobs)
	f := storetest.NewFetcher(blobs...)
	var first atomic.Int64 // size of the blob that is requested first
	f.Allow = func(_, n int64) bool {
		first.CompareAndSwap(0, n)
		return true
	}
	if err := s.Hydrate(t.Context(), b.Put(t, s), store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
		t.Fatal(err)
	}
	if at := (5000 - first.Load()) / 10; at >= together {
		t.Errorf("fragment %d of %d was fetched first", at, n)
	}
}

func TestFragmentsResume(t *testing.T) {
	blobs := fragments(12, 3<<20)
	dir := t.TempDir()
	s := storetest.Open(t, dir, store.Options{})
	b := storetest.NewBuilder("x")
	want := merged(b, "w", "header", blobs)
	table := b.Put(t, s)
	f := storetest.NewFetcher(blobs[:6]...)
	err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)})
	if !errdefs.IsNotFound(err) {
		t.Fatalf("half of the blobs: %v", err)
	}
	if _, err := s.Views.Files(table); !errdefs.IsUnavailable(err) {
		t.Errorf("files: %v", err)
	}
	s.Close()
	s = storetest.Open(t, dir, store.Options{})
	g := storetest.NewFetcher(blobs...)
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(g)}); err != nil {
		t.Fatal(err)
	}
	if content(t, s, table)["w"] != want {
		t.Error("wrong bytes")
	}
	var twice int64
	for _, p := range blobs {
		d := digest.FromBytes(p)
		twice += max(0, f.Sent(d)+g.Sent(d)-int64(len(p)))
	}
	// A chunk in transfer when the first attempt ended does not count.
	if twice > 6*int64(len(blobs[0])) {
		t.Errorf("%d bytes were fetched twice", twice)
	}
}

func TestFragmentWithWrongBytes(t *testing.T) {
	blobs := fragments(4, 1<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	b := storetest.NewBuilder("x")
	want := merged(b, "w", "header", blobs)
	table := b.Put(t, s)
	f := storetest.NewFetcher(blobs...)
	f.Mangle = func(off int64, p []byte) {
		if p[0] == 2 {
			p[len(p)-1] ^= 1
		}
	}
	err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)})
	var wrong *verify.Error
	if !errors.As(err, &wrong) || wrong.Want != digest.FromBytes(blobs[2]) {
		t.Fatalf("got %v, want a verify.Error of the third blob", err)
	}
	if _, err := s.Views.Files(table); !errdefs.IsUnavailable(err) {
		t.Errorf("files: %v", err)
	}
	good := storetest.NewFetcher(blobs...)
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(good)}); err != nil {
		t.Fatal(err)
	}
	if content(t, s, table)["w"] != want {
		t.Error("wrong bytes")
	}
}

// The digest in the table is that of the content that the author of the table saw. If the parts make
// other content, the ranges follow headers that were not verified.
func TestFileDiffersFromTable(t *testing.T) {
	blobs := fragments(4, 1<<20)
	for _, good := range []bool{true, false} {
		s := storetest.Open(t, t.TempDir(), store.Options{})
		b := storetest.NewBuilder("x")
		want := merged(b, "w", "header", blobs)
		b.Table().Files[0].Digest = digest.FromString(want)
		if !good {
			b.Table().Files[0].Digest = digest.FromString("other")
		}
		table := b.Put(t, s)
		err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(blobs...))})
		if good != (err == nil) || !good && !errdefs.IsDataLoss(err) {
			t.Errorf("good %v: %v", good, err)
		}
		if _, err := s.Views.Files(table); good != (err == nil) {
			t.Errorf("good %v: files: %v", good, err)
		}
	}
}

// Staged bytes can be lost: by a garbage collection, or by a power failure.
func TestFragmentsWhoseFileIsGone(t *testing.T) {
	blobs := fragments(3, 5<<20)
	dir := t.TempDir()
	s := storetest.Open(t, dir, store.Options{})
	b := storetest.NewBuilder("x")
	want := merged(b, "w", "header", blobs)
	table := b.Put(t, s)
	f := storetest.NewFetcher(blobs[:2]...)
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)}); err == nil {
		t.Fatal("complete without the third blob")
	}
	s.Close()
	data, _ := filepath.Glob(filepath.Join(dir, "partial", "*", "data"))
	if len(data) != 1 {
		t.Fatalf("staged: %v", data)
	}
	if err := os.Remove(data[0]); err != nil {
		t.Fatal(err)
	}
	s = storetest.Open(t, dir, store.Options{})
	g := storetest.NewFetcher(blobs...)
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(g)}); err != nil {
		t.Fatal(err)
	}
	if content(t, s, table)["w"] != want {
		t.Error("wrong bytes")
	}
}

func TestCollectLeavesRunningFetchesAlone(t *testing.T) {
	blobs := fragments(3, 5<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	b := storetest.NewBuilder("x")
	want := merged(b, "w", "header", blobs)
	table := b.Raw("r", storetest.Random(1, 100), 0o644).Put(t, s)
	f := storetest.NewFetcher(append(blobs, storetest.Random(1, 100))...)
	hold := make(chan struct{})
	last := digest.FromBytes(blobs[2])
	f.Delay = func(ctx context.Context) {
		if f.Calls(last) > 0 {
			<-hold
		}
	}
	done := make(chan error)
	go func() {
		done <- s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)})
	}()
	waitFor(t, "the fetch begins", func() bool { return f.Calls(last) > 0 })
	if r, err := s.GC(t.Context(), store.GCOptions{}); err != nil || r.Partials > 0 {
		t.Errorf("collected %+v, %v", r, err)
	}
	close(hold)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if content(t, s, table)["w"] != want {
		t.Error("wrong bytes")
	}
}

func TestTableValidateParts(t *testing.T) {
	blobs := fragments(2, 1000)
	good := func() *filetable.Table {
		b := storetest.NewBuilder("x")
		merged(b, "w", "header", blobs)
		return b.Table()
	}
	if err := good().Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*filetable.File){
		"digest that climbs":  func(f *filetable.File) { f.Digest = "sha256:../../x" },
		"inline and parts":    func(f *filetable.File) { f.Source.Inline = []byte("x") },
		"blob and parts":      func(f *filetable.File) { f.Source.Blob = digest.FromBytes(blobs[0]) },
		"parts of parts":      func(f *filetable.File) { f.Source.Parts[0].Parts = f.Source.Parts[1:] },
		"empty part":          func(f *filetable.File) { f.Source.Parts[0] = filetable.Source{} },
		"part of nothing":     func(f *filetable.File) { f.Source.Parts[1].Size = 0 },
		"beyond the blob":     func(f *filetable.File) { f.Source.Parts[1].Offset = 101 },
		"negative offset":     func(f *filetable.File) { f.Source.Parts[1].Offset = -1 },
		"offset overflows":    func(f *filetable.File) { f.Source.Parts[1].Offset = 1<<63 - 1 },
		"unknown blob":        func(f *filetable.File) { f.Source.Parts[1].Blob = digest.FromString("x") },
		"compressed part":     func(f *filetable.File) { f.Source.Parts[1].Codec = filetable.CodecZstd },
		"inline with a range": func(f *filetable.File) { f.Source.Parts[0].Size = 6 },
		"more than the file":  func(f *filetable.File) { f.Size-- },
		"less than the file":  func(f *filetable.File) { f.Size++ },
	} {
		tab := good()
		change(&tab.Files[0])
		if err := tab.Validate(); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	tab := good()
	tab.Files = append(tab.Files, filetable.File{Path: "x", Type: filetable.TypeReg, Size: tab.Blobs[0].Size, Digest: tab.Blobs[0].Digest,
		Source: &filetable.Source{Blob: tab.Blobs[0].Digest, Size: tab.Blobs[0].Size}})
	if err := tab.Validate(); !errdefs.IsInvalidArgument(err) {
		t.Errorf("fragments as a file: %v", err)
	}
}

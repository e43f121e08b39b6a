package store_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/storetest/disktest"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// TestStagedDamage damages what an interrupted download has staged, and synced in this boot: for every kind of blob
// the object is right, and no more is fetched again than what is damaged, if that can be told.
func TestStagedDamage(t *testing.T) {
	const (
		chunk = filetable.MaxChunk
		size  = 4 * chunk
		there = 2 * chunk // of it, before the interruption
	)
	weights := storetest.Random(31, size)
	plain := modelTar(t, weights)
	type kind struct {
		name    string
		blob    []byte
		path    string
		digests bool // each chunk has one
		build   func(*storetest.Builder, []byte)
	}
	kinds := []kind{
		{"raw", weights, "w", false, func(b *storetest.Builder, p []byte) { b.Raw("w", p, 0o644) }},
		{"raw with digests", weights, "w", true, func(b *storetest.Builder, p []byte) { b.RawChunks("w", p, 0o644, chunk) }},
		{"raw with states", weights, "w", true, func(b *storetest.Builder, p []byte) { b.RawChunks("w", p, 0o644, chunk).Stated(t, p) }},
		{"tar", plain, "model/weights.bin", false, func(b *storetest.Builder, p []byte) { b.Tar(t, p) }},
		{"tar with states", plain, "model/weights.bin", true, func(b *storetest.Builder, p []byte) { b.TarChunks(t, p, chunk).Stated(t, weights) }},
		{"tar gzip", storetest.Compress(t, plain, filetable.CodecGzip), "model/weights.bin", false, func(b *storetest.Builder, p []byte) { b.Unpack(p, filetable.CodecGzip, "") }},
		{"tar zstd", storetest.Compress(t, plain, filetable.CodecZstd), "model/weights.bin", false, func(b *storetest.Builder, p []byte) { b.Unpack(p, filetable.CodecZstd, "") }},
		{"fragments", weights, "w", false, func(b *storetest.Builder, p []byte) { b.Parts("w", 0o644, storetest.Part{Blob: p, N: len(p)}) }},
	}
	disk := disktest.New(t, "ext4", t.TempDir(), 256<<20)
	damages := []struct {
		name string
		told bool // by the disk, also without a digest
		do   func(f *os.File) error
	}{
		{"nothing", true, func(*os.File) error { return nil }},
		{"bit", false, func(f *os.File) error {
			b := make([]byte, 1)
			if _, err := f.ReadAt(b, chunk+1<<20); err != nil {
				return err
			}
			_, err := f.WriteAt([]byte{b[0] ^ 4}, chunk+1<<20)
			return err
		}},
		{"hole", false, func(f *os.File) error {
			return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, chunk, chunk)
		}},
		{"truncated", true, func(f *os.File) error { return f.Truncate(chunk + 5) }},
		{"bad sector", true, func(f *os.File) error { disk.Spoil(f.Name(), chunk+1<<20); return nil }},
	}
	for _, k := range kinds {
		for _, damage := range damages {
			t.Run(k.name+"/"+damage.name, func(t *testing.T) {
				dir, err := os.MkdirTemp(disk.Dir, "")
				if err != nil {
					t.Fatal(err)
				}
				defer os.RemoveAll(dir)
				s := storetest.Open(t, dir, store.Options{})
				b := storetest.NewBuilder(t.Name())
				k.build(b, k.blob)
				table := b.Put(t, s)
				before := interrupted(t, s, table, k.blob, there).Sent(digest.FromBytes(k.blob))
				markSynced(t, dir)
				if err := damage.do(biggestStaged(t, dir)); err != nil {
					t.Fatal(err)
				}
				s = storetest.Open(t, dir, store.Options{})
				defer s.Close()
				g := storetest.NewFetcher(k.blob)
				if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(g)}); err != nil {
					t.Fatal(err)
				}
				if content(t, s, table)[k.path] != string(weights) {
					t.Error("wrong bytes")
				}
				again := before + g.Sent(digest.FromBytes(k.blob)) - int64(len(k.blob))
				most := int64(2 * chunk) // in tars, chunks of the blob are not those of the file
				if damage.name == "nothing" {
					most = 0
				} else if !damage.told && !k.digests {
					most = size + there
				}
				if again > most {
					t.Errorf("%d bytes are fetched again, want at most %d", again, most)
				}
			})
		}
	}
}

// biggestStaged opens the biggest staged file of a store.
func biggestStaged(t *testing.T, dir string) *os.File {
	t.Helper()
	var name string
	var size int64
	err := filepath.WalkDir(filepath.Join(dir, "partial"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Size() > size {
			name, size = path, info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// markSynced marks what is staged as synced in this boot, as checkpoints do when there is more of it.
func markSynced(t *testing.T, dir string) {
	t.Helper()
	marks, err := filepath.Glob(filepath.Join(dir, "partial", "*", "marks"))
	if err != nil || len(marks) == 0 {
		t.Fatalf("no marks: %v", err)
	}
	for _, name := range marks {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, bytes.ReplaceAll(b, []byte{1}, []byte{3}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	unix.Sync()
}

// TestReadersOfStagedDamage checks that a reader gets the right bytes of a chunk that the disk cannot read, before
// the file is complete, and that a file of which wrong bytes may have been read does not keep its identity.
func TestReadersOfStagedDamage(t *testing.T) {
	const chunk = filetable.MaxChunk
	weights := storetest.Random(32, 4*chunk)
	d := digest.FromBytes(weights)
	disk := disktest.New(t, "ext4", t.TempDir(), 128<<20)
	for name, tc := range map[string]struct {
		build  func(*storetest.Builder) *storetest.Builder
		damage func(f *os.File) error
		wrong  bool // readers get wrong bytes, until the chunk is verified
	}{
		"bad sector, states": {func(b *storetest.Builder) *storetest.Builder {
			return b.RawChunks("w", weights, 0o644, chunk).Stated(t, weights)
		}, func(f *os.File) error { disk.Spoil(f.Name(), chunk+1<<20); return nil }, false},
		"bad sector, digests": {func(b *storetest.Builder) *storetest.Builder { return b.RawChunks("w", weights, 0o644, chunk) }, func(f *os.File) error { disk.Spoil(f.Name(), chunk+1<<20); return nil }, false},
		"bit, states": {func(b *storetest.Builder) *storetest.Builder {
			return b.RawChunks("w", weights, 0o644, chunk).Stated(t, weights)
		}, func(f *os.File) error {
			_, err := f.WriteAt([]byte{weights[chunk+1<<20] ^ 4}, chunk+1<<20)
			return err
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp(disk.Dir, "")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			s := storetest.Open(t, dir, store.Options{})
			table := tc.build(storetest.NewBuilder(t.Name())).Put(t, s)
			hold(t, s, table)
			interrupted(t, s, table, weights, 2*chunk)
			markSynced(t, dir)
			if err := tc.damage(biggestStaged(t, dir)); err != nil {
				t.Fatal(err)
			}
			s = storetest.Open(t, dir, store.Options{})
			defer s.Close()
			sources := storetest.From(storetest.NewFetcher(weights))
			if err := s.Views.Expose(t.Context(), table, store.ExposeOptions{Sources: sources}); err != nil {
				t.Fatal(err)
			}
			_, before, err := s.Views.View("").LazyFile(d)
			if err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 1<<20)
			n, err := s.Views.View("").ReadAt(t.Context(), d, got, chunk+1<<19)
			if err != nil || n != len(got) || bytes.Equal(got, weights[chunk+1<<19:][:n]) == tc.wrong {
				t.Errorf("a reader gets %d bytes, %v; wrong: %v", n, err, !tc.wrong)
			}
			if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: sources}); err != nil {
				t.Fatal(err)
			}
			if content(t, s, table)["w"] != string(weights) {
				t.Error("wrong bytes")
			}
			if _, after, err := s.Views.View("").LazyFile(d); err != nil || (after != before) != tc.wrong {
				t.Errorf("identity %s, was %s: %v", after, before, err)
			}
		})
	}
}

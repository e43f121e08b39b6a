package store_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/durable/durabletest"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"go.uber.org/goleak"
)

// The store is killed at each of its calls that change the disk, in turn, in a child process that runs one
// operation.

var crashPoints = flag.Int("crash-points", 12, "how many points of each operation to crash at, evenly spread; 0 for all")

// crashEnv is the variable with the operation of a child; crashDir that with the directory of its
// store.
const (
	crashEnv = "BALLAST_TEST_CRASH"
	crashDir = "BALLAST_TEST_CRASH_DIR"
)

func TestMain(m *testing.M) {
	if op := os.Getenv(crashEnv); op != "" {
		run := func(dir string) error { return crashChild(op, dir) }
		if op == soakOp {
			run = soakChild
		}
		if err := run(os.Getenv(crashDir)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// crashChild runs an operation.
func crashChild(name, dir string) error {
	if err := durabletest.Child(); err != nil {
		return err
	}
	return crashOps[name].run(dir)
}

// crash runs an operation in a child on the store in dir, kills it before call number n, and returns
// the number of its calls; with n 0 it is not killed.
func crash(t *testing.T, name, dir string, n int) (calls int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashEnv+"="+name, crashDir+"="+dir)
	var out bytes.Buffer
	cmd.Stderr = &out
	calls, err := durabletest.Kill(t, cmd, n)
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, &out)
	}
	return calls
}

// A crashOp is an operation with its preparation.
type crashOp struct {
	prepare func(t *testing.T, dir string)
	run     func(dir string) error
}

// crashModel is a model with files of all kinds.
func crashModel() (b *storetest.Builder, f *storetest.Fetcher, files map[string][]byte) {
	return crashModelOf(true)
}

// crashModelOf leaves out files whose digests are unknown until they are complete, unless all is true.
func crashModelOf(all bool) (b *storetest.Builder, f *storetest.Fetcher, files map[string][]byte) {
	raw, tarred, zipped, chunked := storetest.Random(1, 300_000), storetest.Random(2, 200_000), storetest.Random(3, 150_000), storetest.Random(4, 400_000)
	var t testing.T // of builders that do not fail
	plain := storetest.Tar(&t, []tar.Header{{Name: "tarred", Mode: 0o644}}, [][]byte{tarred})
	gzip := storetest.Compress(&t, storetest.Tar(&t, []tar.Header{{Name: "zipped", Mode: 0o644}}, [][]byte{zipped}), filetable.CodecGzip)
	parts := fragments(3, 50_000)
	b = storetest.NewBuilder("crash").Raw("raw", raw, 0o644).RawChunks("chunked", chunked, 0o644, 65536).Stated(&t, chunked).Inline("inline", []byte("inline"), 0o644)
	if all {
		b.Tar(&t, plain).Unpack(gzip, filetable.CodecGzip, "")
		merged(b, "merged", "header", parts)
	}
	f = storetest.NewFetcher(append(parts, raw, plain, gzip, chunked)...)
	files = map[string][]byte{"raw": raw, "tarred": tarred, "zipped": zipped, "chunked": chunked, "inline": []byte("inline")}
	for i := range 8 { // published together
		name, p := fmt.Sprintf("small-%d", i), storetest.Random(uint64(10+i), 1000+i)
		b.Raw(name, p, 0o644)
		f.Blobs[digest.FromBytes(p)], files[name] = p, p
	}
	return b, f, files
}

// crashStore opens the store, adds the reference to the model, as the daemon does at its start, and
// stores the table.
func crashStore(dir string) (s *store.Store, table digest.Digest, f *storetest.Fetcher, err error) {
	b, f, _ := crashModel()
	if s, err = store.Open(dir, store.Options{Reserve: 1}); err != nil {
		return nil, "", nil, err
	}
	p, err := b.Table().Encode()
	if err == nil {
		err = s.AddRef("snapshot/1", digest.FromBytes(p), time.Time{})
	}
	if err == nil || errdefs.IsNotFound(err) {
		table, err = s.PutTable(p)
	}
	if err != nil {
		return nil, "", nil, errors.Join(err, s.Close())
	}
	return s, table, f, nil
}

// with runs f on the store with the model.
func with(dir string, f func(s *store.Store, table digest.Digest, sources store.HydrateOptions) error) error {
	s, table, fetcher, err := crashStore(dir)
	if err != nil {
		return err
	}
	return errors.Join(f(s, table, store.HydrateOptions{Sources: storetest.From(fetcher)}), s.Close())
}

func hydrateModel(s *store.Store, table digest.Digest, o store.HydrateOptions) error {
	return s.Hydrate(context.Background(), table, o)
}

var crashOps map[string]crashOp

func init() { // a function literal, because crashChild and the operations refer to each other
	ready := func(t *testing.T, dir string) {
		if err := with(dir, func(*store.Store, digest.Digest, store.HydrateOptions) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	complete := func(t *testing.T, dir string) {
		if err := with(dir, hydrateModel); err != nil {
			t.Fatal(err)
		}
	}
	_, _, files := crashModel()
	rawObject := func(dir string) string {
		return filepath.Join(dir, "objects", store.ObjectName(digest.FromBytes(files["raw"])))
	}
	crashOps = map[string]crashOp{
		"pull": {ready, func(dir string) error { return with(dir, hydrateModel) }},
		"early read": {ready, func(dir string) error {
			return with(dir, func(s *store.Store, table digest.Digest, o store.HydrateOptions) error {
				b, _, _ := crashModelOf(false)
				p, err := b.Table().Encode()
				if err == nil {
					table, err = s.PutTable(p)
				}
				if err == nil {
					err = s.AddRef("snapshot/2", table, time.Time{})
				}
				if err == nil {
					err = s.Views.Expose(context.Background(), table, store.ExposeOptions{View: "snapshot/2", Sources: o.Sources, Wait: true})
				}
				for off := 0; err == nil && off < len(files["chunked"]); off += 50_000 {
					_, err = s.Views.View("snapshot/2").ReadAt(context.Background(), digest.FromBytes(files["chunked"]), make([]byte, 1), int64(off))
				}
				if err == nil {
					err = hydrateModel(s, table, o)
				}
				return err
			})
		}},
		"collection": {func(t *testing.T, dir string) {
			complete(t, dir)
			if err := with(dir, func(s *store.Store, _ digest.Digest, _ store.HydrateOptions) error {
				for i := range 10 {
					if _, err := s.PutBytes(storetest.Random(uint64(100+i), 5000)); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}, func(dir string) error {
			return with(dir, func(s *store.Store, _ digest.Digest, _ store.HydrateOptions) error {
				r, err := s.GC(context.Background(), store.GCOptions{})
				if err == nil && r.Objects != 10 {
					err = fmt.Errorf("collected %+v", r)
				}
				return err
			})
		}},
		"import": {func(t *testing.T, dir string) {
			ready(t, dir)
			if err := os.WriteFile(filepath.Join(dir, "local"), files["raw"], 0o644); err != nil {
				t.Fatal(err)
			}
		}, func(dir string) error {
			return with(dir, func(s *store.Store, table digest.Digest, _ store.HydrateOptions) error {
				_, err := s.Link(context.Background(), table, store.LinkOptions{Open: func(d digest.Digest) (*os.File, error) {
					if d != digest.FromBytes(files["raw"]) {
						return nil, errdefs.ErrNotFound
					}
					return os.Open(filepath.Join(dir, "local"))
				}})
				return err
			})
		}},
		"repair": {func(t *testing.T, dir string) {
			complete(t, dir)
			if err := change(rawObject(dir), func(p []byte) []byte { p[0] ^= 1; return p }); err != nil {
				t.Fatal(err)
			}
		}, func(dir string) error {
			return with(dir, func(s *store.Store, table digest.Digest, o store.HydrateOptions) error {
				if _, err := s.Check(context.Background(), "", nil); err != nil {
					return err
				}
				return hydrateModel(s, table, o)
			})
		}},
		"rebuild": {func(t *testing.T, dir string) {
			complete(t, dir)
			if err := change(filepath.Join(dir, "store.db"), func(p []byte) []byte { return p[:len(p)/2] }); err != nil {
				t.Fatal(err)
			}
		}, func(dir string) error { return with(dir, hydrateModel) }},
	}
}

// TestCrashPoints checks each point at which the store can be killed: no object is lost, only right
// bytes can be read, and the operation can be repeated.
func TestCrashPoints(t *testing.T) {
	for name, op := range crashOps {
		t.Run(name, func(t *testing.T) {
			before := t.TempDir()
			op.prepare(t, before)
			dir := filepath.Join(t.TempDir(), "store")
			fresh := func() {
				if err := os.RemoveAll(dir); err != nil {
					t.Fatal(err)
				}
				if out, err := exec.Command("cp", "-a", before, dir).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			fresh()
			calls := crash(t, name, dir, 0)
			step := 1
			if *crashPoints > 0 {
				step = max(1, calls / *crashPoints)
			}
			tried := 0
			for n := 1; n <= calls; n += step {
				fresh()
				crash(t, name, dir, n)
				tried++
				afterCrash(t, fmt.Sprintf("killed at %d of %d", n, calls), dir, before)
				if t.Failed() {
					return
				}
			}
			t.Logf("%d calls, killed at %d of them: nothing lost, nothing half visible", calls, tried)
		})
	}
}

// afterCrash checks a store after its process was killed.
func afterCrash(t *testing.T, when, dir, before string) {
	t.Helper()
	_, _, files := crashModel()
	complete := map[string]bool{} // files that were objects before the operation
	for name, p := range files {
		got, err := os.ReadFile(filepath.Join(before, "objects", store.ObjectName(digest.FromBytes(p))))
		complete[name] = err == nil && bytes.Equal(got, p)
	}
	s, table, f, err := crashStore(dir)
	if err != nil {
		t.Errorf("%s: open: %v", when, err)
		return
	}
	defer s.Close()
	for name, p := range files {
		got, err := s.ReadBytes(digest.FromBytes(p), 1<<20, transfer.Names(storetest.From(f)))
		if err == nil && !bytes.Equal(got, p) {
			t.Errorf("%s: %s reads wrong", when, name)
		}
	}
	if _, err := s.GC(t.Context(), store.GCOptions{}); err != nil && !strings.Contains(err.Error(), "nothing is removed") {
		t.Errorf("%s: collect: %v", when, err)
	}
	for name, p := range files {
		if _, err := os.Stat(filepath.Join(dir, "objects", store.ObjectName(digest.FromBytes(p)))); complete[name] && err != nil {
			t.Errorf("%s: %s was there and is lost: %v", when, name, err)
		}
	}
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
		t.Errorf("%s: hydrate: %v", when, err)
		return
	}
	for name, p := range files {
		if got, err := s.ReadBytes(digest.FromBytes(p), 1<<20, transfer.Names(storetest.From(f))); err != nil || !bytes.Equal(got, p) {
			t.Errorf("%s: %s is not complete: %v", when, name, err)
		}
	}
	if bad, err := s.Check(t.Context(), "", nil); len(bad) > 0 || err != nil {
		t.Errorf("%s: check: %v, %v", when, bad, err)
	}
}

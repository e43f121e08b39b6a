package store_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

var soak = flag.Duration("soak", 0, "duration of TestSoak; 0 skips it")

const (
	soakOp   = "soak"           // of crashEnv
	soakSize = 192 << 20        // bytes of the file system
	soakRun  = 10 * time.Second // of a child that is not killed
)

// soakModels are the tables of a soak: files of all kinds, some of them in several models.
func soakModels() (models, blobs [][]byte, files map[digest.Digest][]byte) {
	files = map[digest.Digest][]byte{}
	file := func(p []byte) []byte { files[digest.FromBytes(p)] = p; return p }
	var t testing.T // of builders that do not fail
	shared := file(storetest.Random(1, 9<<20))
	for i := range 8 {
		own := file(storetest.Random(uint64(10+i), (3+i)<<20))
		chunked := bytes.Clone(shared)
		copy(chunked[i<<20:], storetest.Random(uint64(30+i), 1<<19))
		file(chunked)
		small := oneFileTar(&t, uint64(50+i), 300_000)
		zipped := storetest.Compress(&t, oneFileTar(&t, uint64(70+i), 2<<20), filetable.CodecGzip)
		parts := fragments(3, 100_000+i)
		b := storetest.NewBuilder(fmt.Sprint("soak ", i)).Raw("own", own, 0o644).RawChunks("chunked", chunked, 0o644, 1<<20)
		if i < 4 {
			b.Stated(&t, chunked)
		}
		switch i % 4 {
		case 0:
			b.Raw("shared", shared, 0o644)
		case 1:
			b.Tar(&t, small)
		case 2:
			b.Unpack(zipped, filetable.CodecGzip, "")
		case 3:
			merged(b, "merged", fmt.Sprint("header ", i), parts)
		}
		p, err := b.Table().Encode()
		if err != nil {
			panic(err)
		}
		models = append(models, p)
		blobs = append(blobs, append(parts, own, chunked, small, zipped)...)
	}
	return models, append(blobs, shared), files
}

// moody is a registry that fails in many ways.
func moody(r *rand.Rand, blobs [][]byte) transfer.Fetcher {
	f := storetest.NewFetcher(blobs...)
	var mu sync.Mutex
	own, mood := rand.New(rand.NewPCG(r.Uint64(), 0)), r.IntN(6)
	dice := func(n int) int { mu.Lock(); defer mu.Unlock(); return own.IntN(n) }
	f.NoRanges = mood == 1
	f.Fail = func(int64) error {
		if mood == 2 && dice(4) == 0 {
			return errors.New("it fails now and then")
		}
		if mood == 3 && dice(20) == 0 {
			return errdefs.ErrNotFound
		}
		return nil
	}
	f.Cut = func(int64) int { return map[bool]int{true: dice(100_000), false: -1}[mood == 4 && dice(3) == 0] }
	f.Mangle = func(_ int64, p []byte) {
		if mood == 5 && len(p) > 0 && dice(10) == 0 {
			p[dice(len(p))] ^= 1
		}
	}
	f.Delay = func(ctx context.Context) {
		if dice(30) == 0 {
			select {
			case <-time.After(time.Duration(dice(3000)) * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
	return f
}

// soakChild runs random operations on the store in dir for a while. Errors of registries and of a full
// disk are expected; wrong bytes, races and leaks are not.
func soakChild(dir string) error {
	seed, err := strconv.ParseUint(filepath.Base(dir), 10, 64)
	if err != nil {
		return err
	}
	models, blobs, files := soakModels()
	s, err := store.Open(dir, store.Options{Reserve: 1}) // afterwards, because the runtime opens descriptors
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		return err
	}
	goroutines, descriptors := runtime.NumGoroutine(), descriptorsOpen()
	s, err = store.Open(dir, store.Options{Reserve: 8 << 20, Linger: time.Second})
	if err != nil {
		return err
	}
	var (
		work  sync.WaitGroup
		wrong = make(chan error, 100)
	)
	ctx, cancel := context.WithTimeout(context.Background(), soakRun)
	defer cancel()
	for w := range 6 {
		work.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			for ctx.Err() == nil {
				if err := soakStep(ctx, s, r, models, blobs, files); err != nil {
					wrong <- err
					return
				}
			}
		})
	}
	work.Wait()
	s.Resume()
	err = s.Close()
	if left, gerr := filepath.Glob(filepath.Join(dir, "partial", "bytes-*")); len(left) > 0 || gerr != nil {
		err = errors.Join(err, gerr, fmt.Errorf("temporary files stay: %q", left))
	}
	close(wrong)
	for e := range wrong {
		err = errors.Join(err, e)
	}
	for deadline := time.Now().Add(stuck); ; time.Sleep(10 * time.Millisecond) {
		g, d := runtime.NumGoroutine(), descriptorsOpen()
		if g <= goroutines && len(d) <= len(descriptors) {
			return err
		}
		if time.Now().After(deadline) {
			return errors.Join(err, fmt.Errorf("%d goroutines, %d before; descriptors %q, before %q", g, goroutines, d, descriptors))
		}
	}
}

// descriptorsOpen returns what the open descriptors are.
func descriptorsOpen() (list []string) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		name, err := os.Readlink("/proc/self/fd/" + e.Name())
		list = append(list, cmp.Or(name, fmt.Sprint(err)))
	}
	slices.Sort(list)
	return list
}

// soakStep runs one operation. It returns unexpected errors.
func soakStep(ctx context.Context, s *store.Store, r *rand.Rand, models, blobs [][]byte, files map[digest.Digest][]byte) error {
	i := r.IntN(len(models))
	name := fmt.Sprint("snapshot/", i)
	table, err := s.PutTable(models[i])
	if err != nil {
		return nil // the disk is full
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(100+r.IntN(4000))*time.Millisecond)
	defer cancel()
	sources := storetest.FromRepository(fmt.Sprint("registry/", r.IntN(3)), moody(r, blobs), moody(r, blobs))
	switch r.IntN(12) {
	case 0, 1, 2, 3:
		_ = s.AddRef(name, table, time.Time{})
		if err := s.Hydrate(ctx, table, store.HydrateOptions{Sources: sources, Background: r.IntN(2) == 0}); err == nil {
			return readPieces(ctx, s.Views.View(""), files)
		}
	case 4, 5:
		_ = s.AddRef(name, table, time.Time{})
		view := []string{"", name}[r.IntN(2)]
		_ = s.Views.Expose(ctx, table, store.ExposeOptions{View: view, Sources: sources, Wait: true, Probe: r.IntN(2) == 0})
		return readPieces(ctx, s.Views.View(view), files)
	case 6:
		_ = s.RemoveRef(name)
	case 7:
		_, _ = s.GC(ctx, store.GCOptions{Keep: int64(r.IntN(50 << 20))})
	case 8:
		s.Pause()
		time.Sleep(time.Duration(r.IntN(50)) * time.Millisecond)
		s.Resume()
	case 9:
		s.SetRate([]int64{0, 1 << 20, 50 << 20}[r.IntN(3)])
	case 10:
		bad, err := s.Check(ctx, table, nil)
		for _, b := range bad {
			if err == nil && b.Problem != store.ProblemMissing {
				return fmt.Errorf("object %s: %s", b.Digest, b.Problem)
			}
		}
	case 11:
		_, _ = s.State(ctx, table)
		_, _ = s.Usage()
	}
	return nil
}

// readPieces reads and compares a range of every readable file of a view.
func readPieces(ctx context.Context, v store.View, files map[digest.Digest][]byte) error {
	buf := make([]byte, 100_000)
	for d, p := range files {
		off := rand.IntN(len(p))
		n, err := v.ReadAt(ctx, d, buf, int64(off))
		if err != nil && err != io.EOF {
			continue // it is missing, or its registry fails
		}
		if !bytes.Equal(buf[:n], p[off:off+n]) {
			return fmt.Errorf("file %s reads wrong at %d", d, off)
		}
	}
	return nil
}

// TestSoak runs random operations on a store on a small file system, in processes that are killed at
// random or end, and checks in between: readable bytes are right, referenced objects stay, and without
// references everything is removed.
func TestSoak(t *testing.T) {
	if *soak == 0 {
		return // run by make soak
	}
	mount := t.TempDir()
	if err := unix.Mount("soak", mount, "tmpfs", 0, fmt.Sprint("size=", soakSize)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mount, 0); err != nil {
			t.Error(err)
		}
	})
	_, _, files := soakModels()
	dir := ""
	rounds, kills := 0, 0
	for end := time.Now().Add(*soak); time.Now().Before(end); rounds++ {
		next := filepath.Join(mount, fmt.Sprint(time.Now().UnixNano())) // the seed
		if dir == "" {
			if err := os.Mkdir(next, 0o700); err != nil {
				t.Fatal(err)
			}
		} else if err := os.Rename(dir, next); err != nil {
			t.Fatal(err)
		}
		dir = next
		kill := time.Duration(0)
		if rand.IntN(3) > 0 {
			kill = time.Duration(200+rand.IntN(4000)) * time.Millisecond
			kills++
		}
		soakRound(t, dir, kill)
		soakLook(t, dir, files)
		if t.Failed() {
			t.Fatalf("in round %d of %s", rounds, dir)
		}
	}
	t.Logf("%d rounds, %d killed", rounds, kills)
}

// soakRound runs a child, and kills it after a time if that is not 0.
func soakRound(t *testing.T, dir string, kill time.Duration) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashEnv+"="+soakOp, crashDir+"="+dir)
	var out bytes.Buffer
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := make(chan struct{})
	if kill > 0 {
		time.AfterFunc(kill, func() { close(killed); _ = cmd.Process.Kill() })
	}
	err := cmd.Wait()
	select {
	case <-killed:
		err = nil
	default:
	}
	if err != nil || strings.Contains(out.String(), "DATA RACE") {
		t.Errorf("%v\n%s", err, &out)
	}
}

// soakLook checks the store between two rounds.
func soakLook(t *testing.T, dir string, files map[digest.Digest][]byte) {
	t.Helper()
	s, err := store.Open(dir, store.Options{Reserve: 1})
	if err != nil {
		t.Error(err)
		return
	}
	defer s.Close()
	bad, err := s.Check(t.Context(), "", nil)
	for _, b := range bad {
		if b.Problem != store.ProblemMissing {
			t.Errorf("object %s: %s", b.Digest, b.Problem)
		}
	}
	if err != nil {
		t.Error(err)
	}
	if err := readPieces(t.Context(), s.Views.View(""), files); err != nil {
		t.Error(err)
	}
	if _, err := s.GC(t.Context(), store.GCOptions{}); err != nil {
		t.Error(err)
	}
	missing, err := s.Missing("")
	if err != nil || len(missing) > 0 {
		t.Errorf("after a collection: %v, %v", missing, err)
	}
	refs := s.Catalog.Refs("")
	u, uerr := s.Usage()
	var sum int64
	for _, r := range refs {
		sum += r.Size
	}
	if err := errors.Join(err, uerr); err != nil || sum != u.Unique-u.Reclaimable || u.Reclaimable > 1<<20 {
		t.Errorf("references %d bytes, objects %+v: %v", sum, u, err)
	}
}

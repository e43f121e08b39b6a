package layout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// TestParallel keeps the tags of all that make and write one layout at once, each as its own process does.
func TestParallel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			l, err := Create(dir, fmt.Sprint("v", i))
			if err != nil {
				t.Error(err)
				return
			}
			defer l.Close()
			if err := l.PutManifest(t.Context(), mediatype.OCIManifest, fmt.Appendf(nil, `{"annotations":{"v":"%d"}}`, i)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	l, entries, err := OpenAll(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if len(entries) != 16 {
		t.Errorf("the index has %d manifests, want 16: %v", len(entries), entries)
	}
}

// TestLocked waits for another program only until the context ends.
func TestLocked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := Create(dir, "v1")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	other, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := l.PutManifest(ctx, mediatype.OCIManifest, []byte("{}")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while it is locked: %v", err)
	}
	other.Close()
	if err := l.PutManifest(t.Context(), mediatype.OCIManifest, []byte("{}")); err != nil {
		t.Error(err)
	}
}

// TestIndexMemory: an index that is none costs no multiple of its size.
func TestIndexMemory(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put(ocispec.ImageLayoutFile, "{}")
	for _, element := range []string{"0", "{}", "null", `""`, "[]"} {
		put(ocispec.ImageIndexFile, `{"manifests":[`+strings.Repeat(element+",", 300_000)+element+`]}`)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, _, err := OpenAll(dir); !errdefs.IsInvalidArgument(err) {
			t.Errorf("manifests %s: %v", element, err)
		}
		runtime.ReadMemStats(&after)
		if n := (after.TotalAlloc - before.TotalAlloc) >> 20; n > 16 {
			t.Errorf("manifests %s: %d MiB are allocated", element, n)
		}
	}
}

// TestCreateAgain makes a layout of what a process that was killed while it made one has left, and of nothing else.
func TestCreateAgain(t *testing.T) {
	t.Parallel()
	for left, ok := range map[string]bool{"oci-layout.ABC": true, "oci-layouts": false, "notes.txt": false} {
		dir := t.TempDir()
		writeFile(t, dir, left, "{")
		l, err := Create(dir, "v1")
		if (err == nil) != ok || !ok && !errdefs.IsFailedPrecondition(err) {
			t.Errorf("with %s: %v", left, err)
		}
		if err == nil {
			l.Close()
		}
	}
}

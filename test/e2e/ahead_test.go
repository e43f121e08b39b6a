package e2e

import (
	"fmt"
	"os"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// TestReadAhead runs a container that reads the first page of a complete model: a process of ballastd reads the first
// two windows of 16 MiB ahead, and no more, because the container does not go on.
func TestReadAhead(t *testing.T) {
	const window = 16 << 20
	n := node.StartNode(t, node.Options{Config: "[snapshot]\nread_ahead = \"on\""})
	w := weights(36, 5*window)
	ref := push(t, n, converttest.ModelPackRaw(converttest.Files(w)))
	ballast(t, n, "prefetch", ref)
	mustPull(t, n, "ballast", ref)
	f, err := os.Open(object(n, digest.FromBytes(w)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cached := func() int {
		var st unix.Cachestat_t
		if err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{Len: uint64(len(w))}, &st, 0); err != nil {
			t.Fatal(err)
		}
		return int(st.Cache) * os.Getpagesize()
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil || cached() > 0 {
		t.Fatalf("%v, %d bytes are in the page cache", err, cached())
	}
	if out := n.Start("ballast", ref, "loader"); out.Err != nil {
		t.Fatalf("%v: %s", out.Err, out.Output())
	}
	waitFor(t, "the model to be read ahead", func() error {
		// Again: the process may have started after the read.
		out := n.Exec("loader", "/.bin/busybox", "dd", "if=/model.gguf", "of=/dev/null", "bs=4096", "count=1")
		if size := cached(); out.Err != nil || size < 2*window-os.Getpagesize() {
			return fmt.Errorf("%v: %d bytes are in the page cache, %s", out.Err, size, out.Output())
		}
		return nil
	})
	for range 3 {
		n.Exec("loader", "/.bin/busybox", "sleep", "0.1")
	}
	if size := cached(); size > 2*window {
		t.Errorf("%d bytes are in the page cache, although nobody reads on", size)
	}
}

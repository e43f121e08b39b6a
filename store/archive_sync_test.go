package store_test

import (
	"archive/tar"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
)

// The members of an archive are synced one by one, or all with the file system if there are very many of them.
func TestSyncsOfMembers(t *testing.T) {
	for n, want := range map[int]int64{10: 10, 600: 0} {
		disk := storetest.NewSlowDisk(t)
		var syncs atomic.Int64
		disk.Slow(func(op, path string) bool {
			if op == "fsync" && strings.Contains(path, "/member-") {
				syncs.Add(1)
			}
			return false
		})
		s := storetest.Open(t, disk.Dir, store.Options{})
		var headers []tar.Header
		var contents [][]byte
		for i := range n {
			p := fmt.Appendf(nil, "content %d", i)
			headers = append(headers, tar.Header{Name: fmt.Sprint("f", i), Mode: 0o644, Size: int64(len(p)), Typeflag: tar.TypeReg})
			contents = append(contents, p)
		}
		blob := storetest.Tar(t, headers, contents)
		b := storetest.NewBuilder(fmt.Sprint(n))
		b.Tar(t, blob)
		if err := s.Hydrate(t.Context(), b.Put(t, s), store.HydrateOptions{Sources: good(storetest.NewFetcher(blob))}); err != nil {
			t.Fatal(err)
		}
		if got := syncs.Load(); got != want {
			t.Errorf("%d members: %d were synced on their own, want %d", n, got, want)
		}
	}
}

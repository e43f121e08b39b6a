package expose

import (
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/chunkfile"
	"github.com/ballast-dev/ballast/store/internal/dirs"
	"github.com/ballast-dev/ballast/store/internal/hydrate"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/internal/object"
	"github.com/opencontainers/go-digest"
)

// Close does not wait until a large object is compared with the chunks by which it was read. Its readers wait no longer.
func TestCloseWhileComparing(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	root, err := dirs.Open(dir, object.Keeps)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	db, err := meta.Open(filepath.Join(dir, "store.db"), meta.Options{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	objects, err := object.Open(object.Options{Root: root, Temp: "partial", DB: db, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer objects.Close()
	p := make([]byte, 4<<20)
	d := digest.FromBytes(p)
	if _, err := objects.Put(meta.Arrival{}, p); err != nil {
		t.Fatal(err)
	}
	s := New(Options{Objects: objects, Engine: &hydrate.Engine{}, Log: log})
	const times = 1 << 18 // that the object is read: 1 TiB
	l := &chunkfile.Layout{ID: d, Chunks: slices.Repeat([]filetable.Chunk{{Size: int64(len(p)), Digest: d}}, times)}
	x := &exposure{digest: d, size: int64(len(p)), file: &chunkfile.File{Layout: l}, tables: map[digest.Digest]string{}, waiting: make(chan struct{})}
	s.index.show(x, d, "")
	s.Arrived(d, "")
	closed := make(chan struct{})
	go func() {
		s.Close()
		<-x.waiting
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Error("Close waits for the comparison, or a reader still waits")
	}
}

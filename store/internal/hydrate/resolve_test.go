package hydrate

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// TestResolveTooManyFiles has an archive of 1,000 files at one path, and at two.
func TestResolveTooManyFiles(t *testing.T) {
	db, err := meta.Open(filepath.Join(t.TempDir(), "store.db"), meta.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	archive := digest.FromString("archive")
	var members []filetable.Member
	for i := range 1000 {
		members = append(members, filetable.Member{Path: fmt.Sprint(i), Type: filetable.TypeReg})
	}
	if err := db.Arrive(meta.Arrival{Contents: map[digest.Digest][]filetable.Member{archive: members}}); err != nil {
		t.Fatal(err)
	}
	tab := &filetable.Table{
		Blobs:   []filetable.Blob{{Digest: archive, Archive: filetable.ArchiveTar, Codec: filetable.CodecGzip}},
		Unpacks: []filetable.Unpack{{Blob: archive}},
	}
	for i := range 199_000 {
		tab.Files = append(tab.Files, filetable.File{Path: fmt.Sprintf("f%d", i), Type: filetable.TypeReg})
	}
	if files, err := Resolve(db, tab); err != nil || len(files) != 200_000 {
		t.Errorf("200,000 files: got %d, %v", len(files), err)
	}
	tab.Unpacks = append(tab.Unpacks, filetable.Unpack{Blob: archive, As: "a.tgz"})
	files, err := Resolve(db, tab)
	limit, ok := errors.AsType[*filetable.LimitError](err)
	if !ok || limit.Limit != filetable.LimitFiles || !errdefs.IsInvalidArgument(err) {
		t.Errorf("an archive of them twice: got %d files, %v", len(files), err)
	}
}

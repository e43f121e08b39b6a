package object

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// TestFiles checks that every file below objects is compared with the records, and that other files are
// left alone.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	db, err := meta.Open(filepath.Join(dir, "store.db"), meta.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	right, short, gone, unknown := digest.FromString("right"), digest.FromString("short"), digest.FromString("gone"), digest.FromString("unknown")
	if err := db.Arrive(meta.Arrival{Files: []meta.File{{Digest: right, Size: 4}, {Digest: short, Size: 5}, {Digest: gone, Size: 0}}}); err != nil {
		t.Fatal(err)
	}
	other := strings.Repeat("ab", 32)
	none := []string{
		"objects/stray", "objects/sha256/stray", "objects/sha256/ab/" + other[2:], "objects/sha256/cd/" + other,
		"objects/sha256/ab/" + strings.ToUpper(other), "objects/sha512/ab/" + other,
	}
	for _, name := range append([]string{Path(right), Path(short), Path(unknown)}, none...) {
		if err := errors.Join(root.MkdirAll(filepath.Dir(name), 0o700), root.WriteFile(name, []byte("1234"), Mode)); err != nil {
			t.Fatal(err)
		}
	}
	link, nested := "objects/sha256/ab/"+other, "objects/sha256/ab/directory"
	if err := errors.Join(root.Symlink("/etc/passwd", link), root.Mkdir(nested, 0o700)); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	files := Scan(t.Context(), root, slog.New(slog.NewTextHandler(&log, nil)))
	if err := files.Wait(); err != nil {
		t.Fatal(err)
	}
	got := files.compare(db)
	want := compared{
		lost: []digest.Digest{gone}, resized: []meta.Sized{{Digest: short, Size: 4}}, unknown: []meta.Sized{{Digest: unknown, Size: 4}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(compared{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, name := range append(none, link, nested) {
		if !slices.ContainsFunc(strings.Split(log.String(), "\n"), func(l string) bool { return strings.HasSuffix(l, "path="+name) }) {
			t.Errorf("%s is not logged", name)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Scan(ctx, root, slog.New(slog.DiscardHandler)).Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}

package carton_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/ballast-dev/ballast/convert/carton"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// unpacked writes the files of a carton to a new directory, as an unpacker does.
func unpacked(t *testing.T, c converttest.Carton) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, p []byte, link string) {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if link != "" {
			err = errors.Join(err, os.Symlink(link, path))
		} else {
			err = errors.Join(err, os.WriteFile(path, p, 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range c.Files {
		if f.URLs == nil {
			write(f.Path, f.Data, f.Link)
		}
	}
	write("MANIFEST", c.ManifestBytes(), "")
	if p := c.LinksBytes(); p != nil {
		write("LINKS", p, "")
	}
	return dir
}

// TestFolder gets the same model from a directory as from its archive, and every file has its
// content.
func TestFolder(t *testing.T) {
	t.Parallel()
	c := converttest.GoodCarton(storetest.Random(1, 16<<20+7)) // larger than files with a checksum
	dir := unpacked(t, c)
	if !carton.IsFolder(dir) || carton.IsFolder(filepath.Join(dir, "model")) {
		t.Error("the directory is not recognised, or another is")
	}
	if err := os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("not of the model"), 0o644); err != nil {
		t.Fatal(err)
	}
	folder, err := carton.OpenFolder(t.Context(), dir, carton.Options{Hash: c.Hash()})
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	got, err := folder.Model(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	want, err := open(t, at(c.Bytes()), carton.Options{}).Model(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("model (-archive +directory):\n%s", diff)
	}
	files, err := hydrate(t, got, folder.Fetcher())
	if err != nil {
		t.Fatal(err)
	}
	all := c.Model()
	for name, f := range all {
		if got := files[name]; !bytes.Equal(got.Data, f.Data) || got.Mode != f.Mode {
			t.Errorf("%s: %d bytes with mode %o, or other bytes", name, len(got.Data), got.Mode)
		}
	}
	if len(files) != len(all) {
		t.Errorf("%d files, want %d", len(files), len(all))
	}
}

// TestFolderRefuses has entries that a directory of another user can contain.
func TestFolderRefuses(t *testing.T) {
	t.Parallel()
	weights := storetest.Random(2, 17<<20)
	for name, tt := range map[string]struct {
		spoil func(dir string) error
		want  func(error) bool
	}{
		"a wrong byte in a small file": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "misc/input.png"), []byte("\x89PNH"), 0o644)
		}, errdefs.IsDataLoss},
		"a wrong byte in a large file": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "model/weights.bin"), append([]byte{weights[0] ^ 1}, weights[1:]...), 0o644)
		}, errdefs.IsDataLoss},
		"a wrong carton.toml": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "carton.toml"), []byte("spec_version = 1\n"), 0o644)
		}, errdefs.IsDataLoss},
		"a file that is not there": {func(dir string) error { return os.Remove(filepath.Join(dir, "model/weights.bin")) }, errdefs.IsInvalidArgument},
		"no MANIFEST":              {func(dir string) error { return os.Remove(filepath.Join(dir, "MANIFEST")) }, errdefs.IsInvalidArgument},
		"a pipe": {func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "model/weights.bin")), syscall.Mkfifo(filepath.Join(dir, "model/weights.bin"), 0o644))
		}, errdefs.IsInvalidArgument},
		"a link out of the directory": {func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "model/weights.bin")), os.Symlink("/etc/passwd", filepath.Join(dir, "model/weights.bin")))
		}, errdefs.IsInvalidArgument},
		"a directory that links out": {func(dir string) error {
			return errors.Join(os.Rename(filepath.Join(dir, "misc"), dir+"-misc"), os.Symlink(dir+"-misc", filepath.Join(dir, "misc")))
		}, func(err error) bool { return err != nil }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := unpacked(t, converttest.GoodCarton(weights))
			if err := tt.spoil(dir); err != nil {
				t.Fatal(err)
			}
			if err := readFolder(t, dir); !tt.want(err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// readFolder reads all files of a carton in a directory.
func readFolder(t *testing.T, dir string) error {
	c, err := carton.OpenFolder(t.Context(), dir, carton.Options{})
	if err != nil {
		return err
	}
	defer c.Close()
	m, err := c.Model(context.Background())
	if err != nil {
		return err
	}
	_, err = hydrate(t, m, c.Fetcher())
	return err
}

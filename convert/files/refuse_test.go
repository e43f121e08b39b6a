package files_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/files"
	"github.com/containerd/errdefs"
)

// TestNames: an error names the link that leads nowhere, and the snapshots of a hub's cache.
func TestNames(t *testing.T) {
	hub := t.TempDir()
	revision := filepath.Join(hub, "snapshots/0a1b")
	err := errors.Join(os.MkdirAll(filepath.Join(hub, "blobs"), 0o755), os.MkdirAll(revision, 0o755), os.MkdirAll(filepath.Join(hub, "snapshots/2c3d"), 0o755),
		os.WriteFile(filepath.Join(hub, "blobs/x"), public, 0o644), os.Symlink("../../blobs/x", filepath.Join(revision, "a.bin")),
		os.Symlink("../../blobs/y", filepath.Join(revision, "b.bin")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := files.Open(t.Context(), hub); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), hub+"/snapshots/0a1b\n  "+hub+"/snapshots/2c3d") {
		t.Errorf("the repository of a cache: %v", err)
	}
	if _, err := files.Open(t.Context(), revision); !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), `symbolic link "b.bin" leads to "../../blobs/y"`) {
		t.Errorf("a link that leads nowhere: %v", err)
	}
	if err := errors.Join(os.Remove(filepath.Join(revision, "b.bin")), os.WriteFile(filepath.Join(revision, ".gitattributes"), public, 0o644)); err != nil {
		t.Fatal(err)
	}
	src, err := files.Open(t.Context(), revision)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	if n := len(src.Model.Table.Files); n != 1 || !strings.Contains(strings.Join(src.Losses, " "), ".gitattributes") {
		t.Errorf("%d files, left out %q", n, src.Losses)
	}
}

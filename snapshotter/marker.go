package snapshotter

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store/durable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// markerName is the file beside fs/ that says that a snapshot is ours.
const markerName = "ballast.json"

// maxMarker is the most read of a marker, in bytes; the longest that is written has 182.
const maxMarker = 4096

// A marker says what a snapshot of ours is. The zero marker is that of a snapshot that is
// not ours.
type marker struct {
	// Empty is true for the snapshot of a blob layer.
	Empty bool `json:"empty,omitempty"`

	// Table is the file table shown in the snapshot.
	Table digest.Digest `json:"table,omitempty"`

	// Show is the backend.
	Show tree.Backend `json:"show,omitempty"`

	// View is true if the model was shown before it was complete: its stubs see the view of the
	// snapshot, and not all objects.
	View bool `json:"view,omitempty"`

	// Shown is true when every file is in place and durable.
	Shown bool `json:"shown,omitempty"`

	// Size and Inodes are what the snapshot itself takes on disk, without the objects.
	Size   int64 `json:"size,omitempty"`
	Inodes int64 `json:"inodes,omitempty"`
}

func (m marker) validate() error {
	if m.Empty == (m.Table != "") {
		return errors.New("neither empty nor a model, or both")
	}
	if m.Table == "" {
		return nil
	}
	if err := m.Table.Validate(); err != nil {
		return err
	}
	if m.Show != tree.Stubs && m.Show != tree.Links {
		return fmt.Errorf("shown as %q", m.Show)
	}
	if m.Size < 0 || m.Inodes < 0 {
		return errors.New("negative usage")
	}
	return nil
}

// decodeMarker reads a marker. It returns errdefs.ErrDataLoss for one that is damaged: a
// snapshot whose kind is not known must not be mounted.
func decodeMarker(p []byte) (marker, error) {
	var m marker
	err := json.Unmarshal(p, &m)
	if err == nil {
		err = m.validate()
	}
	if err != nil {
		return marker{}, fmt.Errorf("%s: %w: %w", markerName, err, errdefs.ErrDataLoss)
	}
	return m, nil
}

// readMarker returns the marker in the directory of a snapshot, the zero marker if it has
// none.
func readMarker(dir string) (marker, error) {
	f, err := os.Open(filepath.Join(dir, markerName))
	if errors.Is(err, fs.ErrNotExist) {
		return marker{}, nil
	}
	if err != nil {
		return marker{}, err
	}
	defer f.Close()
	p, err := io.ReadAll(io.LimitReader(f, maxMarker+1))
	if err != nil {
		return marker{}, err
	}
	m, err := decodeMarker(p)
	if err != nil {
		return marker{}, fmt.Errorf("snapshot %s: %w", filepath.Base(dir), err)
	}
	return m, nil
}

// writeMarker puts m into the directory of a snapshot. It is durable on return.
func writeMarker(dir string, m marker) error {
	if err := m.validate(); err != nil {
		panic("snapshotter: internal error: marker: " + err.Error())
	}
	p, err := json.Marshal(m)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := durable.Write(root, markerName, p, 0o600); err != nil {
		return fmt.Errorf("write %s of snapshot %s: %w", markerName, filepath.Base(dir), err)
	}
	return nil
}

// emptyDir says whether a directory has no entries.
func emptyDir(dir string) (bool, error) {
	f, err := os.Open(dir)
	if err != nil {
		return false, err
	}
	defer f.Close()
	_, err = f.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}

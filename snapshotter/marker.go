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

// markerName is a file beside fs/ that marks a model or empty snapshot.
const markerName = "ballast.json"

// maxMarker limits the size of a marker, in bytes; the longest one written has 182.
const maxMarker = 4096

// A marker describes a model or empty snapshot. The zero marker means an ordinary snapshot.
type marker struct {
	// Empty is true for the snapshot of a blob layer.
	Empty bool `json:"empty,omitempty"`

	// Table is the file table that the snapshot shows.
	Table digest.Digest `json:"table,omitempty"`

	// Show is the backend of the files.
	Show tree.Backend `json:"show,omitempty"`

	// View is true if the model was incomplete when it was first shown: its stubs see the view of
	// the snapshot, not all objects.
	View bool `json:"view,omitempty"`

	// Shown is true when every file is in place and durable.
	Shown bool `json:"shown,omitempty"`

	// Size (in bytes) and Inodes are the disk usage of the snapshot itself, without objects.
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

// decodeMarker parses a marker. It returns errdefs.ErrDataLoss for a damaged one: a snapshot of
// unknown kind must not be mounted.
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

// readMarker returns the marker in the directory of a snapshot, or the zero marker if there is
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

// writeMarker durably writes m into the directory of a snapshot.
func writeMarker(dir string, m marker) error {
	if err := m.validate(); err != nil {
		panic("snapshotter: internal error: marker: " + err.Error())
	}
	p, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := durable.WriteFile(filepath.Join(dir, markerName), p, 0o600); err != nil {
		return fmt.Errorf("write %s of snapshot %s: %w", markerName, filepath.Base(dir), err)
	}
	return nil
}

// emptyDir reports whether a directory has no entries.
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

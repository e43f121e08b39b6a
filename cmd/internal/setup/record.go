package setup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// recordVersion is the version of the record's format.
const recordVersion = 1

// A record is what is known of a set-up: /var/lib/ballast-setup/setup.json. It is written before the first
// change, so that what a crash left half done is found, and after the last.
type record struct {
	Version int     `json:"version"`
	Ballast string  `json:"ballast"` // the version that was installed
	Options Options `json:"options"`

	// Containerd is the version of containerd that the drop-in is for.
	Containerd string `json:"containerd,omitempty"`

	// Files are those that were written or are about to be, by path.
	Files map[string]file `json:"files"`

	// Dirs are those that were made for them.
	Dirs []string `json:"dirs,omitempty"`

	// Pending are the services that have to be restarted because of files that were changed.
	Pending []string `json:"pending,omitempty"`

	// Upgrading says that programs are being replaced: what was there before is in previous already.
	Upgrading bool `json:"upgrading,omitempty"`

	// RollingBack says that the version before is being put back: what is replaced is kept already.
	RollingBack bool `json:"rollingBack,omitempty"`

	// Removing says that a removal has begun.
	Removing bool `json:"removing,omitempty"`

	// Previous is what the last upgrade replaced; nil if there was none.
	Previous *generation `json:"previous,omitempty"`
}

// A file is one that a set-up has written.
type file struct {
	Digest digest.Digest `json:"digest,omitempty"` // of what was written; none for programs
	Before digest.Digest `json:"before,omitempty"` // of what is to be replaced, which was ours too
	Import string        `json:"import,omitempty"` // only this import was added
	Block  bool          `json:"block,omitempty"`  // only our block was added

	// Original says that there was another file, which is kept.
	Original bool        `json:"original,omitempty"`
	Mode     fs.FileMode `json:"mode,omitempty"` // of the original
}

// wrote reports whether content is of setup: what was written, or what was to be replaced when a crash came.
func (f file) wrote(content []byte) bool {
	return f.Digest != "" && verify.Bytes(f.Digest, content) == nil || f.Before != "" && verify.Bytes(f.Before, content) == nil
}

// A generation is all that belonged to one version of ballast.
type generation struct {
	Ballast string                 `json:"ballast"`
	Files   map[string]fs.FileMode `json:"files"`             // what is kept, with its permissions
	Missing []string               `json:"missing,omitempty"` // what was not there
}

// readRecord returns the record of a host, or nil if nothing was set up.
func (h host) readRecord() (*record, error) {
	b, _, err := h.read(stateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", stateFile, err, errdefs.ErrFailedPrecondition)
	}
	if r.Version != recordVersion {
		return nil, fmt.Errorf("%s has version %d, this ballast supports %d: use the ballast that has written it: %w", stateFile, r.Version, recordVersion, errdefs.ErrFailedPrecondition)
	}
	return &r, nil
}

// writeRecord makes a record that of the host, durably.
func (h host) writeRecord(r *record) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	b = append(b, '\n')
	if have, _, err := h.read(stateFile); err == nil && bytes.Equal(have, b) {
		return nil
	}
	if err := h.mkdir(stateDir, 0o700); err != nil {
		return err
	}
	return h.write(stateFile, b, 0o600)
}

// keepAs keeps what is at a path before it is replaced. An original that is kept is the first.
func (h host) keepAs(p, to string) error {
	if to == filepath.Join(originals, p) && h.exists(to) {
		return nil
	}
	b, mode, err := h.read(p)
	if err != nil {
		return err
	}
	if err := h.mkdir(originals, 0o700); err != nil {
		return err
	}
	return h.write(to, b, mode)
}

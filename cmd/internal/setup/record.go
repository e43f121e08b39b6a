package setup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// recordVersion is the version of the record's format.
const recordVersion = 1

// A record describes a set-up: /var/lib/ballast-setup/setup.json. It is written before the first
// change, so that the leftovers of a crash are found, and after the last.
type record struct {
	Version int     `json:"version"`
	Ballast string  `json:"ballast"` // the installed version
	Options Options `json:"options"`

	// Containerd is the version of containerd that the drop-in is for.
	Containerd string `json:"containerd,omitempty"`

	// Files are the files that were written or are about to be, by path.
	Files map[string]file `json:"files"`

	// Dirs are the directories created for them.
	Dirs []string `json:"dirs,omitempty"`

	// Before is the host before a run that has not ended; nil between runs.
	Before *before `json:"before,omitempty"`

	// Pending are the services that must be restarted because their files changed.
	Pending []string `json:"pending,omitempty"`

	// Upgrading means that programs are being replaced: the previous version is already kept in
	// previous.
	Upgrading bool `json:"upgrading,omitempty"`

	// RollingBack means that the previous version is being restored: what is replaced is already
	// kept.
	RollingBack bool `json:"rollingBack,omitempty"`

	// Removing means that a removal has begun.
	Removing bool `json:"removing,omitempty"`

	// Previous is the version that the last upgrade replaced; nil if there was none.
	Previous *generation `json:"previous,omitempty"`
}

// A file was written by a set-up.
type file struct {
	Digest digest.Digest `json:"digest,omitempty"` // of the written content
	Before digest.Digest `json:"before,omitempty"` // of the file to be replaced, which was also ours
	Import string        `json:"import,omitempty"` // only this import was added
	Block  bool          `json:"block,omitempty"`  // only our block was added

	// Original means that there was another file before, which is kept.
	Original bool        `json:"original,omitempty"`
	Mode     fs.FileMode `json:"mode,omitempty"` // of the original
}

// wrote reports whether setup wrote the content with a digest: it is the written content, or the content to be
// replaced at the time of a crash.
func (f file) wrote(d digest.Digest) bool {
	return d != "" && (f.Digest == d || f.Before == d)
}

// A generation is the files of one version of ballast.
type generation struct {
	Ballast string                 `json:"ballast"`
	Files   map[string]fs.FileMode `json:"files"`             // kept files, with their permissions
	Missing []string               `json:"missing,omitempty"` // missing files
}

// readRecord returns the record of a host, or nil if nothing was set up.
func (h host) readRecord() (*record, error) {
	b, _, err := h.Read(stateFile)
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

// writeRecord writes the record of the host durably.
func (h host) writeRecord(r *record) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	b = append(b, '\n')
	if have, _, err := h.Read(stateFile); err == nil && bytes.Equal(have, b) {
		return nil
	}
	if err := h.mkdir(stateDir, 0o700); err != nil {
		return err
	}
	return h.write(stateFile, b, 0o600)
}

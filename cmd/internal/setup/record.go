package setup

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/ballast-dev/ballast/cmd/internal/wire"
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

	// Removing means that a removal has begun.
	Removing bool `json:"removing,omitempty"`
}

// A file was written by a set-up.
type file struct {
	Digest digest.Digest `json:"digest,omitempty"` // of the written content
	Before digest.Digest `json:"before,omitempty"` // of the file to be replaced, which was also ours
	After  digest.Digest `json:"after,omitempty"`  // of the content of others that a run puts in its place
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

// keptRecord returns the record of before the run that has not ended.
func (h host) keptRecord() (*record, error) {
	text, _, err := h.Read(kept(stateFile))
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", kept(stateFile), err, errdefs.ErrFailedPrecondition)
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

// finish sets the records written before and after the steps.
func (b *builder) finish() {
	done := record{Version: recordVersion, Ballast: wire.ThisVersion().Version, Options: *b.o, Files: b.files, Pending: b.plan.Pending}
	if b.Unknown == nil {
		done.Containerd = b.Version.String()
	}
	if b.record != nil {
		done.Containerd = cmp.Or(done.Containerd, b.record.Containerd)
		if b.programs == "" {
			done.Ballast = b.record.Ballast
		}
	}
	done.Dirs = b.dirs()
	next := done
	done.Files = map[string]file{}
	for p, f := range b.files {
		f.Before, f.After = "", ""
		done.Files[p] = f
	}
	next.Files = maps.Clone(b.old)
	if next.Files == nil {
		next.Files = map[string]file{}
	}
	maps.Copy(next.Files, b.files)
	next.Pending = slices.Clone(done.Pending)
	if b.dirty[daemonGroup] && !b.o.NoService || b.pending(pendingDaemon) {
		next.Pending = append(next.Pending, pendingDaemon)
	}
	if b.dirty[containerdGroup] || b.pending(pendingContainerd) {
		next.Pending = append(next.Pending, pendingContainerd)
	}
	next.Pending = sorted(next.Pending)
	if b.record != nil {
		next.Before = b.record.Before
	}
	b.plan.next, b.plan.done = next, done
}

// dirs returns the directories that setup has made, and those that the plan makes, sorted. An empty directory of ours
// that is there before the first set-up is of a volume of the chart, which the kubelet makes and never removes.
func (b *builder) dirs() []string {
	var dirs []string
	if b.record != nil {
		dirs = slices.Clone(b.record.Dirs)
	} else if names, err := b.List(configDir); err == nil && len(names) == 0 && b.IsDir(configDir) && !b.o.Packaged {
		dirs = []string{configDir}
	}
	for _, s := range b.plan.Steps {
		if s.Action == Write || s.Action == Copy {
			dirs = append(dirs, b.disk().missingDirs(s.Target)...)
		}
	}
	return sorted(dirs)
}

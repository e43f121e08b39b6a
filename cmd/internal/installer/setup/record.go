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

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
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

	// Kept are the versions of others that are kept: those that are put back by a removal, and those that are not in
	// their places.
	Kept versions `json:"kept,omitempty"`

	// Run is the run that has not ended; nil between runs.
	Run *run `json:"run,omitempty"`

	// Pending are the services that must be restarted because their files changed.
	Pending []string `json:"pending,omitempty"`

	// Removing means that a removal has begun.
	Removing bool `json:"removing,omitempty"`
}

// A file was written by a set-up.
type file struct {
	Wrote  []digest.Digest `json:"wrote,omitempty"`  // the contents, the last one last: more than one only in a run
	Was    digest.Digest   `json:"was,omitempty"`    // the version of others that it has replaced, which is kept
	Import string          `json:"import,omitempty"` // only this import was added
	Block  bool            `json:"block,omitempty"`  // only our block was added
	Docker bool            `json:"docker,omitempty"` // only our settings of Docker were added

	given bool // the plan gives the file the last content, unless it has it
}

// ofOthers reports whether only a part of the file is ours.
func (f file) ofOthers() bool { return f.Import != "" || f.Block || f.Docker }

// wrote reports whether setup wrote the content with a digest.
func (f file) wrote(d digest.Digest) bool { return slices.Contains(f.Wrote, d) }

// last returns the last content that setup wrote, or "".
func (f file) last() digest.Digest {
	if len(f.Wrote) == 0 {
		return ""
	}
	return f.Wrote[len(f.Wrote)-1]
}

// ended returns files after a run: those that the plan gave their content have no other of earlier runs.
func ended(files map[string]file) map[string]file {
	files = maps.Clone(files)
	for p, f := range files {
		if f.given {
			f.Wrote = f.Wrote[len(f.Wrote)-1:]
			files[p] = f
		}
	}
	return files
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

// finish sets the records written before and after the steps.
func (b *builder) finish() {
	done := record{Version: recordVersion, Ballast: wire.ThisVersion().Version, Options: *b.o, Files: ended(b.files), Kept: b.kept, Pending: b.plan.Pending}
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
	next := b.begun(done)
	next.Pending = slices.Clone(done.Pending)
	if b.dirty[daemonGroup] && !b.o.NoService || b.pending(pendingDaemon) {
		next.Pending = append(next.Pending, pendingDaemon)
	}
	if b.dirty[containerdGroup] || b.pending(pendingContainerd) {
		next.Pending = append(next.Pending, pendingContainerd)
	}
	if b.dirty[dockerGroup] || b.pending(pendingDocker) {
		next.Pending = append(next.Pending, pendingDocker)
	}
	next.Pending = sorted(next.Pending)
	b.plan.next, b.plan.done = next, done
}

// begun returns the record during the run after which it is done.
func (b *builder) begun(done record) record {
	done.Files = maps.Clone(b.old)
	if done.Files == nil {
		done.Files = map[string]file{}
	}
	maps.Copy(done.Files, b.files)
	if b.record != nil {
		done.Run = b.record.Run
	}
	return done
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

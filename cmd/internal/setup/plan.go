package setup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/containerdversion"
	"github.com/ballast-dev/ballast/cmd/internal/dirs"
	"github.com/ballast-dev/ballast/cmd/internal/node"
	"github.com/ballast-dev/ballast/cmd/internal/snippet"
	"github.com/ballast-dev/ballast/cmd/internal/wire"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Recorded returns the choices of the last set-up of a host, as defaults for flags. It returns the
// zero value if there was none.
func Recorded(root string) (Options, error) {
	o := Options{Host: root}
	o.complete()
	r, err := hostAt(o.Host).readRecord()
	if err != nil || r == nil {
		return Options{}, err
	}
	return r.Options, nil
}

// Fresh reports whether ballast was never set up on a host: it has neither a record nor a unit of its own.
func Fresh(root string) bool {
	h := hostAt(root)
	r, err := h.readRecord()
	return err == nil && r == nil && !h.Exists(unitDir+"/"+serviceName)
}

// New returns the steps that set up a host. It changes nothing. programs is the directory of the
// programs in this process's file system; if it is empty, the programs of the host stay as they
// are.
//
// It returns errdefs.ErrFailedPrecondition, with advice, for a host that cannot be set up as it is,
// and errdefs.ErrAlreadyExists for files of others that would have to be replaced.
func New(ctx context.Context, o Options, programs string) (*Plan, error) {
	for _, r := range o.Registries {
		if err := snippet.CheckRegistry(r); err != nil {
			return nil, fmt.Errorf("--registry: %w", err)
		}
	}
	v, err := look(ctx, &o)
	if err != nil {
		return nil, err
	}
	return planOf(ctx, v, &o, programs)
}

// planOf is New for a view.
func planOf(ctx context.Context, v *view, o *Options, programs string) (*Plan, error) {
	if p := v.unfinished(); p != nil {
		return p, nil
	}
	if v.record != nil && v.record.Removing {
		return nil, fmt.Errorf("a removal was not completed: run ballast setup --remove to complete it: %w", errdefs.ErrFailedPrecondition)
	}
	b := v.builder(o, programs)
	if v.record != nil {
		b.old = v.record.Files
	}
	return b.build(ctx)
}

// builder returns a builder with an empty plan.
func (v *view) builder(o *Options, programs string) *builder {
	return &builder{view: v, o: o, programs: programs, files: map[string]file{}, gone: map[string]bool{}, plan: &Plan{
		Distro: v.Distro.Name, view: v,
	}}
}

// build returns the plan of a set-up.
func (b *builder) build(ctx context.Context) (*Plan, error) {
	if b.Containerd == nil {
		return nil, b.unreadable
	}
	if err := b.foreignPart(ctx); err != nil {
		return nil, err
	}
	if b.Distro.ReadOnly {
		return b.talos()
	}
	if err := cmp.Or(b.check(), b.opens()); err != nil {
		return nil, err
	}
	if err := dirs.Check(b.Config, b.Root); err != nil {
		return nil, err
	}
	others, err := dirs.Foreign(b.Config, b.Root)
	if err != nil {
		return nil, err
	}
	if len(others) > 0 {
		b.note("%s: not of ballast, in its directories; stays when ballast is removed", strings.Join(others, ", "))
	}
	for _, f := range []func() error{b.settings, b.daemon, b.containerd, b.registries} {
		if err := f(); err != nil {
			return nil, err
		}
	}
	if err := b.judge(ctx); err != nil {
		return nil, err
	}
	b.finish()
	return b.plan, nil
}

// A builder makes a plan.
type builder struct {
	*view
	o        *Options
	programs string
	plan     *Plan
	old      map[string]file  // of the record
	files    map[string]file  // the wanted files
	gone     map[string]bool  // removed paths
	theirs   *node.Containerd // the configuration of containerd without our drop-in
	beside   *node.Containerd // the same with the files that our import brings in
	block    string           // our part of the template of containerd's configuration, if that is how it is added
	dirty    [3]bool          // by group: files change
	fixing   bool             // edited files stay
}

// check returns why the host cannot be set up as requested.
func (b *builder) check() error {
	switch {
	case b.o.SnapshotterOnly && b.o.RuntimeHandler != "":
		return fmt.Errorf("--runtime-handler and --snapshotter-only cannot be used together: %w", errdefs.ErrInvalidArgument)
	case b.o.Like != "" && b.o.RuntimeHandler == "":
		return fmt.Errorf("--like is for --runtime-handler: %w", errdefs.ErrInvalidArgument)
	case b.Version.Before(containerdversion.Oldest):
		return fmt.Errorf("containerd %s is too old for ballast, which needs %s or later; distributions of Kubernetes and https://github.com/containerd/containerd/releases have newer ones: %w", b.Version, containerdversion.Oldest, errdefs.ErrFailedPrecondition)
	case !b.Systemd && (!b.o.NoService || !b.o.NoRestart):
		return fmt.Errorf("%s has no systemd: use --no-service --no-restart --runtime-handler ballast (or --snapshotter-only), then run ballastd and restart containerd yourself: %w", b.o.Host, errdefs.ErrFailedPrecondition)
	case b.o.NoService && b.o.RuntimeHandler == "" && !b.o.SnapshotterOnly && !b.o.Force:
		return fmt.Errorf("without --runtime-handler all pods use ballast, and without a service ballastd is one of them: it could not start without itself. Use --runtime-handler ballast: %w", errdefs.ErrFailedPrecondition)
	}
	return nil
}

// opens returns why the version that is installed cannot open the store.
func (b *builder) opens() error {
	root, err := b.Follow(b.Config.Root)
	if err != nil || b.programs == "" {
		return err
	}
	has, err := store.Schema(root)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(has)
	if reads, _ := strconv.Atoi(store.SchemaVersion); err == nil && n <= reads {
		return nil
	}
	return fmt.Errorf("ballast %s cannot open the store: %s has schema %s, and this version reads up to %s. Keep the later version; or remove ballast with its models (ballast setup --remove), and set this one up: %w",
		wire.ThisVersion().Version, b.Config.Root, has, store.SchemaVersion, errdefs.ErrFailedPrecondition)
}

// want adds the steps that give one of our files its content. A file that was written or edited by
// others is replaced only by force, and kept; otherwise want returns errdefs.ErrAlreadyExists.
func (b *builder) want(p string, data []byte, mode fs.FileMode, g group, why string) error {
	have, was, err := b.Read(p)
	if errors.Is(err, fs.ErrNotExist) || err == nil && string(have) == string(data) {
		return b.put(p, data, mode, g, why)
	}
	if err != nil {
		return err
	}
	f, known := b.old[p]
	switch {
	case known && f.wrote(digest.FromBytes(have)):
		return b.put(p, data, mode, g, why)
	case b.fixing:
		b.files[p] = f
		b.note("%s was changed after setup wrote it, and is not replaced: use ballast setup --force", p)
		return nil
	case b.o.Force:
		if err := b.put(p, data, mode, g, why); err != nil {
			return err
		}
		step, now := &b.plan.Steps[len(b.plan.Steps)-1], b.files[p]
		if step.keep = filepath.Join(originals, p); known {
			step.keep += ".edited"
		} else {
			now.Original, now.Mode = true, was
			b.files[p] = now
		}
		b.note("%s is not as setup writes it; it is kept as %s", p, step.keep)
		return nil
	case !known:
		return fmt.Errorf("%s exists, and setup did not write it. Move it away, or replace it with --force, which keeps it for --remove: %w", p, errdefs.ErrAlreadyExists)
	}
	return fmt.Errorf("%s was changed after setup wrote it. Move the additions to another file, or replace it with --force: %w", p, errdefs.ErrAlreadyExists)
}

// put adds the steps that give a file its content.
func (b *builder) put(p string, data []byte, mode fs.FileMode, g group, why string) error {
	have, _, err := b.Read(p)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return err
	}
	f := file{Digest: digest.FromBytes(data)}
	if was, ours := b.old[p]; ours {
		f.Original, f.Mode = was.Original, was.Mode
	}
	if !missing && string(have) != string(data) {
		f.Before = digest.FromBytes(have)
	}
	b.files[p] = f
	if !missing && string(have) == string(data) {
		return nil
	}
	b.add(Step{Action: Write, Target: p, Why: why, data: data, mode: mode, group: g})
	return nil
}

// edit is put for a file with content of others: the original is kept.
func (b *builder) edit(p string, old string, data string, g group, why string, f file) error {
	if err := b.put(p, []byte(data), 0o644, g, why); err != nil {
		return err
	}
	now := b.files[p]
	now.Import, now.Block = f.Import, f.Block
	if old != "" {
		_, mode, err := b.Read(p)
		if err != nil {
			return err
		}
		n := len(b.plan.Steps)
		changes := n > 0 && b.plan.Steps[n-1].Target == p
		if changes {
			b.plan.Steps[n-1].mode = mode
		}
		if _, ours := b.old[p]; !ours {
			now.Original, now.Mode = true, mode
			if changes {
				b.plan.Steps[n-1].keep = filepath.Join(originals, p)
			}
		}
	}
	b.files[p] = now
	return nil
}

// program adds the copying of a program. One that setup did not write is kept, and restored by a removal.
func (b *builder) program(name string) error {
	p := filepath.Join(b.o.BinDir, name)
	f, known := b.old[p]
	if b.programs == "" || b.o.Packaged {
		if known {
			b.files[p] = f
		}
		return nil
	}
	from := filepath.Join(b.programs, name)
	fresh, err := digestOf(from)
	if err != nil {
		return fmt.Errorf("ballast and ballastd must be in one directory: %w", err)
	}
	have, err := b.disk().digestAt(p)
	if err != nil {
		return err
	}
	mode, err := b.disk().modeOf(p)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f.Digest, f.Before = fresh, ""
	if have != fresh {
		f.Before = have
	}
	b.files[p] = f
	if have == fresh && mode == 0o755 {
		return nil
	}
	step := Step{Action: Copy, Target: p, Why: "ballast " + wire.ThisVersion().Version, from: from, mode: 0o755}
	if name != "ballast" {
		step.group = daemonGroup
	}
	if was := b.old[p]; have != "" && have != fresh && !was.wrote(have) {
		if step.keep = filepath.Join(originals, p); known {
			step.keep += ".edited"
		} else {
			f.Original, f.Mode = true, mode
			b.files[p] = f
		}
		b.note("%s is not of setup; it is kept as %s", p, step.keep)
	}
	b.add(step)
	return nil
}

// digestOf returns the digest of a file.
func digestOf(name string) (digest.Digest, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return digest.FromReader(f)
}

// daemon adds what the daemon needs: programs, settings, units; and its start.
func (b *builder) daemon() error {
	if err := b.program("ballast"); err != nil {
		return err
	}
	if b.Config.Containerd.Address != b.Distro.Socket {
		text := fmt.Sprintf("# Written by \"ballast setup\": where the containerd of this node is.\nversion = 1\n[containerd]\naddress = %q\n", b.Distro.Socket)
		if err := b.want(ownConfig, []byte(text), 0o644, daemonGroup, "containerd is at "+b.Distro.Socket); err != nil {
			return err
		}
	} else if _, ours := b.old[ownConfig]; ours { // which is the reason
		b.files[ownConfig] = b.old[ownConfig]
	}
	if b.o.NoService {
		if _, had := b.old[filepath.Join(unitDir, serviceName)]; had {
			b.step(Disable, strings.Join(b.installed(), " "), "the daemon runs elsewhere")
		}
		return b.stale(daemonGroup)
	}
	if err := b.program("ballastd"); err != nil {
		return err
	}
	texts, units := b.units(), []string(nil)
	for _, u := range []struct{ name, why string }{
		{serviceName, "the unit of ballastd"}, {socketName, "holds the port of the facade"}, {holderName, "keeps the lazy mount while ballastd is down"},
	} {
		text, ok := texts[u.name]
		if !ok {
			continue
		}
		units = append(units, u.name)
		if err := b.wantUnit(u.name, text, u.why); err != nil {
			return err
		}
	}
	if err := b.stale(daemonGroup); err != nil {
		return err
	}
	if !b.enabled(units) {
		b.step(Enable, strings.Join(units, " "), "start it at boot")
	}
	b.startDaemon()
	return nil
}

// startDaemon adds the start of the daemon, or its restart if its files have changed.
func (b *builder) startDaemon() {
	why := "it has changed; containers continue"
	switch {
	case b.dirty[daemonGroup], b.pending(pendingDaemon):
	case !b.running.daemon:
		why = "it is not running"
	case !b.haveKeys():
		why = "the keys of its facade are missing"
	default:
		return
	}
	if b.o.NoRestart {
		b.plan.Pending = append(b.plan.Pending, pendingDaemon)
		b.note("restart ballastd: systemctl restart ballastd.socket ballastd")
		return
	}
	b.step(Start, serviceName, why)
	b.step(Wait, b.Config.AdminAddress, "the daemon answers and has created its keys")
}

// pending reports whether the restart of a service was left to do.
func (b *builder) pending(name string) bool {
	return b.record != nil && slices.Contains(b.record.Pending, name)
}

func (b *builder) step(a Action, target, why string) {
	b.add(Step{Action: a, Target: target, Why: why})
}

// add adds a step, which changes a file of its group.
func (b *builder) add(s Step) {
	b.dirty[s.group] = true
	b.plan.Steps = append(b.plan.Steps, s)
}

func (b *builder) note(format string, a ...any) {
	b.say(fmt.Sprintf(format, a...))
}

func (b *builder) say(note string) { b.plan.Notes = append(b.plan.Notes, note) }

// groupOf returns the group of one of our files, which determines the service that reads it.
func groupOf(p string) group {
	switch {
	case filepath.Base(p) == "hosts.toml", p == closedConfig:
		return noGroup
	case filepath.Dir(p) == unitDir, filepath.Base(p) == "ballast", filepath.Base(p) == "ballastd", filepath.Dir(p) == settingsDir:
		return daemonGroup
	}
	return containerdGroup
}

// stale adds the removal of files of a group that an earlier set-up wrote and this one does not.
func (b *builder) stale(g group) error {
	var paths []string
	for _, p := range slices.Sorted(maps.Keys(b.old)) {
		if _, wanted := b.files[p]; !wanted && groupOf(p) == g {
			paths = append(paths, p)
		}
	}
	return b.undoAll(paths, g, "it is no longer needed")
}

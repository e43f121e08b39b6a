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

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/host/containerdversion"
	"github.com/ballast-dev/ballast/cmd/internal/host/dirs"
	"github.com/ballast-dev/ballast/cmd/internal/installer/node"
	"github.com/ballast-dev/ballast/cmd/internal/installer/snippet"
	"github.com/ballast-dev/ballast/convert/signature/keyless"
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
	v.docker = o.Docker
	b := v.builder(o, programs)
	if v.record != nil {
		b.old = v.record.Files
	}
	return b.build(ctx)
}

// builder returns a builder with an empty plan.
func (v *view) builder(o *Options, programs string) *builder {
	kept := versions{}
	maps.Copy(kept, v.kept)
	return &builder{view: v, o: o, programs: programs, files: map[string]file{}, kept: kept, plan: &Plan{
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
	environment := func() error { return b.environment(ctx) }
	for _, f := range []func() error{b.settings, environment, b.daemon, b.containerd, b.registries, b.docker} {
		if err := f(); err != nil {
			return nil, err
		}
	}
	if err := b.judge(ctx); err != nil {
		return nil, err
	}
	b.scope()
	b.finish()
	return b.plan, nil
}

// scope notes what a set-up without flags means, where it is done for the first time.
func (b *builder) scope() {
	if len(b.old) > 0 {
		return
	}
	if b.o.RuntimeHandler == "" && !b.o.SnapshotterOnly {
		b.note("all pods of this node will use ballast; --runtime-handler ballast is for those that ask for it, --snapshotter-only for none")
	}
	if len(b.o.Registries) == 0 {
		b.note("no registry is closed, so models arrive unconverted and are refused: close those that have models, such as --registry registry.ollama.ai")
	}
}

// A builder makes a plan.
type builder struct {
	*view
	o        *Options
	programs string
	plan     *Plan
	old      map[string]file  // of the record
	files    map[string]file  // the wanted files
	kept     versions         // of files of others, with those that the plan replaces
	theirs   *node.Containerd // the configuration of containerd without our drop-in
	beside   *node.Containerd // the same with the files that our import brings in
	block    string           // our part of the template of containerd's configuration, if that is how it is added
	dirty    [groups]bool     // by group: files change
	fixing   bool             // edited files stay
}

// check returns why the host cannot be set up as requested.
func (b *builder) check() error {
	switch {
	case b.o.SnapshotterOnly && b.o.RuntimeHandler != "":
		return fmt.Errorf("--runtime-handler and --snapshotter-only cannot be used together: %w", errdefs.ErrInvalidArgument)
	case len(b.o.Like) > 0 && b.o.RuntimeHandler == "":
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

// want adds the step that gives one of our files its content, see give.
func (b *builder) want(p string, data []byte, mode fs.FileMode, g group, why string) error {
	return b.give(Step{Action: Write, Target: p, Why: why, data: data, mode: mode, group: g, digest: digest.FromBytes(data)}, false)
}

// give adds a step that gives one of our files its content. A version that others wrote or edited is replaced only by
// force, and kept; otherwise give returns errdefs.ErrAlreadyExists.
func (b *builder) give(s Step, force bool) error {
	p := s.Target
	have, err := b.disk().digestAt(p)
	f, known := b.old[p]
	switch {
	case err != nil:
		return err
	case have == "" || have == s.digest || b.ours(p, have):
		b.put(s, have, false)
		return nil
	case b.fixing:
		if known {
			b.files[p] = f
		}
		b.note("%s was changed after setup wrote it, and is not replaced: use ballast setup --force", p)
		return nil
	case force || b.o.Force:
		b.put(s, have, true)
		b.note("%s is not as setup writes it; it is kept as %s", p, kept(p, have))
		return nil
	case !known:
		return fmt.Errorf("%s exists, and setup did not write it. Move it away, or replace it with --force, which keeps it for --remove: %w", p, errdefs.ErrAlreadyExists)
	}
	return fmt.Errorf("%s was changed after setup wrote it. Move the additions to another file, or replace it with --force: %w", p, errdefs.ErrAlreadyExists)
}

// ours reports whether setup has written a version of a file, or was about to replace it when a run was interrupted.
func (b *builder) ours(p string, d digest.Digest) bool {
	f, known := b.old[p]
	return known && (f.wrote(d) || b.record.Run != nil && b.record.Run.Files[p] == d)
}

// put adds a step, unless the file has its content already. A version of others is kept; the first one is that which
// the file has again when it is removed.
func (b *builder) put(s Step, have digest.Digest, theirs bool) {
	s.found = have
	f, known := b.old[s.Target]
	f.Import, f.Block, f.Docker, f.given = "", false, false, true
	f.Wrote = append(slices.DeleteFunc(slices.Clone(f.Wrote), func(d digest.Digest) bool { return d == s.digest }), s.digest)
	if theirs {
		b.kept.add(s.Target, have)
		if !known {
			f.Was = have
		}
	}
	b.files[s.Target] = f
	if have != s.digest {
		b.add(s)
	}
}

// edit adds the step that adds our part to a file of others, which has the content old, or removes it.
func (b *builder) edit(p, old, data string, g group, why string, part file) error {
	s := Step{Action: Write, Target: p, Why: why, data: []byte(data), mode: 0o644, group: g, digest: digest.FromString(data)}
	have := digest.Digest("")
	switch mode, err := b.disk().modeOf(p); {
	case err == nil:
		s.mode, have = mode, digest.FromString(old)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	_, known := b.old[p]
	b.put(s, have, have != "" && have != s.digest && !known)
	f := b.files[p]
	f.Import, f.Block, f.Docker = part.Import, part.Block, part.Docker
	b.files[p] = f
	return nil
}

// program adds the copying of a program. One that setup did not write is kept, and restored by a removal.
func (b *builder) program(name string) error {
	p := filepath.Join(b.o.BinDir, name)
	if b.programs == "" || b.o.Packaged {
		if f, known := b.old[p]; known {
			b.files[p] = f
		}
		return nil
	}
	s := Step{Action: Copy, Target: p, Why: "ballast " + wire.ThisVersion().Version, from: filepath.Join(b.programs, name), mode: 0o755}
	if name != "ballast" {
		s.group = daemonGroup
	}
	var err error
	if s.digest, err = digestOf(s.from); err != nil {
		return fmt.Errorf("ballast, ballastd and %s must be in one directory: %w", keyless.Name, err)
	}
	switch linked, err := b.linked(p, s.digest); {
	case err != nil:
		return err
	case linked: // a removal would take the file behind it
		s.found = s.digest
		b.put(s, s.found, true)
		b.add(s)
		return nil
	}
	before := len(b.plan.Steps)
	if err := b.give(s, true); err != nil {
		return err
	}
	mode, err := b.disk().modeOf(p)
	if err == nil && mode != s.mode && len(b.plan.Steps) == before {
		b.add(s)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// linked reports whether a path is a symbolic link to a file with a content.
func (b *builder) linked(p string, content digest.Digest) (bool, error) {
	name, err := b.Path(p)
	if err != nil {
		return false, err
	}
	if info, err := os.Lstat(name); err != nil || info.Mode().Type() != fs.ModeSymlink {
		return false, nil // or it does not exist
	}
	have, err := b.disk().digestAt(p)
	return have == content, err
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
		units := slices.DeleteFunc(b.installed(), func(u string) bool { // those of others
			p := filepath.Join(unitDir, u)
			_, ours := b.old[p]
			return !ours && b.Exists(p)
		})
		if len(units) > 0 {
			b.step(Disable, strings.Join(units, " "), "the daemon runs elsewhere")
		}
		return b.stale(daemonGroup)
	}
	for _, name := range []string{"ballastd", keyless.Name} {
		if err := b.program(name); err != nil {
			return err
		}
	}
	texts, err := b.units()
	if err != nil {
		return err
	}
	var units []string
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
	if s.data != nil {
		s.digest = digest.FromBytes(s.data)
	}
	b.dirty[s.group] = true
	b.plan.Steps = append(b.plan.Steps, s)
}

func (b *builder) note(format string, a ...any) {
	b.say(fmt.Sprintf(format, a...))
}

func (b *builder) say(note string) { b.plan.Notes = append(b.plan.Notes, note) }

// programs are the names of the programs that setup copies.
var programs = []string{"ballast", "ballastd", keyless.Name}

// groupOf returns the group of one of our files, which determines the service that reads it.
func groupOf(p string) group {
	switch {
	case filepath.Base(p) == "hosts.toml", p == closedConfig:
		return noGroup
	case p == dockerConfig:
		return dockerGroup
	case filepath.Dir(p) == unitDir, slices.Contains(programs, filepath.Base(p)), filepath.Dir(p) == settingsDir, p == environmentFile:
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

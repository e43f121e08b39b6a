package setup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/ballast-dev/ballast/cmd/internal/snippet"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Recorded returns the choices of the last set-up of a host, as defaults for flags. It returns the
// zero value if there was none.
func Recorded(root string) (Options, error) {
	o := Options{Host: root}
	o.complete()
	r, err := host{o.Host}.readRecord()
	if err != nil || r == nil {
		return Options{}, err
	}
	return r.Options, nil
}

// New returns the steps that set up a host. It changes nothing. programs is the directory of the
// programs in this process's file system; if it is empty, the programs of the host stay as they
// are.
//
// It returns errdefs.ErrFailedPrecondition, with advice, for a host that cannot be set up as it is,
// and errdefs.ErrAlreadyExists for files of others that would have to be replaced.
func New(ctx context.Context, o Options, programs string) (*Plan, error) {
	v, err := look(ctx, &o)
	if err != nil {
		return nil, err
	}
	return planOf(v, &o, programs)
}

// planOf is New for a view.
func planOf(v *view, o *Options, programs string) (*Plan, error) {
	if v.record != nil && v.record.Removing {
		return nil, fmt.Errorf("a removal was not completed: run ballast setup --remove to complete it: %w", errdefs.ErrFailedPrecondition)
	}
	b := v.builder(o, programs)
	if v.record != nil {
		b.old = v.record.Files
	}
	return b.build()
}

// builder returns a builder with an empty plan.
func (v *view) builder(o *Options, programs string) *builder {
	return &builder{view: v, o: o, programs: programs, files: map[string]file{}, gone: map[string]bool{}, plan: &Plan{
		Distro: v.distro.name, view: v, unit: v.distro.service(v.host),
	}}
}

// build returns the plan of a set-up.
func (b *builder) build() (*Plan, error) {
	if b.distro.readOnly {
		return b.talos()
	}
	if err := b.check(); err != nil {
		return nil, err
	}
	for _, f := range []func() error{b.settings, b.daemon, b.containerd, b.registries} {
		if err := f(); err != nil {
			return nil, err
		}
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
	old      map[string]file // of the record
	files    map[string]file // the wanted files
	gone     map[string]bool // removed paths
	version  string          // of containerd; "" if unknown
	dirty    [3]bool         // by group: files change
	copies   bool            // programs are replaced
	fixing   bool            // edited files stay
}

// check returns why the host cannot be set up as requested.
func (b *builder) check() error {
	switch {
	case b.o.SnapshotterOnly && b.o.RuntimeHandler != "":
		return fmt.Errorf("--runtime-handler and --snapshotter-only cannot be used together: %w", errdefs.ErrInvalidArgument)
	case !b.o.NoService && !b.systemd:
		return fmt.Errorf("%s has no systemd: run ballastd yourself, and use --no-service: %w", b.o.Host, errdefs.ErrFailedPrecondition)
	case b.o.NoService && b.o.RuntimeHandler == "" && !b.o.SnapshotterOnly && !b.o.Force:
		return fmt.Errorf("without --runtime-handler all pods use ballast, and without a service ballastd is one of them: it could not start without itself. Use --runtime-handler ballast: %w", errdefs.ErrFailedPrecondition)
	case b.o.NoService && !b.systemd && !b.o.NoRestart:
		return fmt.Errorf("%s has no systemd to restart containerd: use --no-restart, and restart it yourself: %w", b.o.Host, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// want adds the steps that give one of our files its content. A file that was written or edited by
// others is replaced only by force; otherwise want returns errdefs.ErrAlreadyExists.
func (b *builder) want(p string, data []byte, mode fs.FileMode, g group, why string) error {
	have, _, err := b.read(p)
	if errors.Is(err, fs.ErrNotExist) || err == nil && string(have) == string(data) {
		return b.put(p, data, mode, g, why)
	}
	if err != nil {
		return err
	}
	was, known := b.old[p]
	switch {
	case known && was.wrote(have):
		return b.put(p, data, mode, g, why)
	case b.o.Force, (!known || was.Digest == "") && (bytes.Contains(have, []byte("Written by \"ballast ")) || filepath.Dir(p) == unitDir):
		if err := b.put(p, data, mode, g, why); err != nil {
			return err
		}
		kept := filepath.Join(originals, p) + ".replaced"
		b.plan.Steps[len(b.plan.Steps)-1].keep = kept
		b.note("%s was different; the old content is kept as %s", p, kept)
		return nil
	case b.fixing:
		b.files[p] = was
		b.note("%s was changed after setup wrote it, and is not replaced: use ballast setup --force", p)
		return nil
	}
	return fmt.Errorf("%s was changed after setup wrote it. Move the additions to another file, or replace it with --force: %w", p, errdefs.ErrAlreadyExists)
}

// put adds the steps that give a file its content.
func (b *builder) put(p string, data []byte, mode fs.FileMode, g group, why string) error {
	have, _, err := b.read(p)
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
	if _, ours := b.old[p]; !ours && old != "" {
		_, mode, err := b.read(p)
		if err != nil {
			return err
		}
		now.Original, now.Mode = true, mode
		if n := len(b.plan.Steps); n > 0 && b.plan.Steps[n-1].Target == p {
			b.plan.Steps[n-1].keep, b.plan.Steps[n-1].mode = filepath.Join(originals, p), mode
		}
	}
	b.files[p] = now
	return nil
}

// program adds the copying of a program.
func (b *builder) program(name string) error {
	p := filepath.Join(b.o.BinDir, name)
	b.files[p] = file{}
	if b.programs == "" {
		return nil
	}
	from := filepath.Join(b.programs, name)
	same, err := b.sameFile(from, p)
	if err != nil || same {
		return err
	}
	step := Step{Action: Copy, Target: p, Why: "ballast " + api.ThisVersion().Version, from: from, mode: 0o755}
	if name != "ballast" {
		step.group = daemonGroup
	}
	b.copies = true
	b.add(step)
	return nil
}

// sameFile reports whether a program of this process's file system equals the one of the host.
func (b *builder) sameFile(from, p string) (bool, error) {
	info, err := os.Stat(from)
	if err != nil {
		return false, fmt.Errorf("ballast and ballastd must be in one directory: %w", err)
	}
	name, err := b.follow(p)
	if err != nil {
		return false, err
	}
	is, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil || is.Size() != info.Size() || is.Mode().Perm() != 0o755 {
		return false, err
	}
	if os.SameFile(info, is) {
		return true, nil
	}
	a, err := digestOf(from)
	if err != nil {
		return false, err
	}
	z, err := digestOf(name)
	return a == z, err
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
	if b.config.Containerd.Address != b.distro.socket {
		text := fmt.Sprintf("# Written by \"ballast setup\": where the containerd of this node is.\nversion = 1\n[containerd]\naddress = %q\n", b.distro.socket)
		if err := b.want(ownConfig, []byte(text), 0o644, daemonGroup, "containerd is at "+b.distro.socket); err != nil {
			return err
		}
	} else if _, ours := b.old[ownConfig]; ours { // which is the reason
		b.files[ownConfig] = b.old[ownConfig]
	}
	if b.o.NoService {
		if _, had := b.old[filepath.Join(unitDir, serviceName)]; had {
			b.step(Disable, b.installed(), "the daemon runs elsewhere")
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
		if err := b.want(filepath.Join(unitDir, u.name), []byte(text), 0o644, daemonGroup, u.why); err != nil {
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
	default:
		return
	}
	if b.o.NoRestart {
		b.plan.Pending = append(b.plan.Pending, pendingDaemon)
		b.note("restart ballastd: systemctl restart ballastd.socket ballastd")
		return
	}
	b.step(Start, serviceName, why)
	b.step(Wait, b.config.AdminAddress, "the daemon answers and has created its keys")
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

// hostsFile returns the path of the hosts.toml of a registry.
func (v *view) hostsFile(registry string) string {
	return filepath.Join(v.distro.hostsDir, registry, "hosts.toml")
}

// registries adds the hosts.toml files. They come last: they need the keys of the facade.
func (b *builder) registries() error {
	closed := b.o.Registries
	refuse, notes, open, err := b.heal(b.o, closed)
	if err != nil {
		return err
	}
	if len(refuse) > 0 && !b.o.Force && !b.fixing {
		return fmt.Errorf("%s. Pull it now (crictl pull), if it is then pinned; or name it by digest; or use another registry; or leave that registry open; --force ignores this: %w", strings.Join(refuse, "; "), errdefs.ErrFailedPrecondition)
	}
	b.plan.Notes = append(b.plan.Notes, append(refuse, notes...)...)
	if len(closed) == 0 {
		return b.stale(noGroup)
	}
	hosts, err := HostsOf(b.config)
	if err != nil {
		return err
	}
	later := !b.haveKeys() && (b.o.NoService || b.o.NoRestart)
	if later {
		b.plan.Pending = append(b.plan.Pending, "hosts.toml")
		b.note("the hosts.toml files of %s can be written when ballastd has created its keys: run this command again when ballastd is running", strings.Join(closed, ", "))
	}
	for _, r := range open { // before _default is closed
		if err := b.want(b.hostsFile(r), []byte(openHosts(r)), 0o644, noGroup, "the node needs images of "+r+", and _default is closed"); err != nil {
			return err
		}
	}
	for _, r := range closed {
		if err := b.closeRegistry(hosts, r, later); err != nil {
			return err
		}
	}
	return b.stale(noGroup)
}

// closeRegistry adds the hosts.toml of a registry.
func (b *builder) closeRegistry(hosts snippet.Hosts, registry string, later bool) error {
	p := b.hostsFile(registry)
	if later {
		if f, ours := b.old[p]; ours {
			b.files[p] = f
		}
		return nil
	}
	hosts.Registry, hosts.PlainHTTP = registry, local(registry)
	why := "tags of " + registry + " go through the facade"
	have, err := b.text(p)
	if err != nil {
		return err
	}
	if strings.Contains(have, "\nserver = \"http://"+registry+"\"\n") {
		hosts.PlainHTTP = true // as written by "ballast config hosts --plain-http"
	}
	var text strings.Builder
	if err := hosts.Write(&text); err != nil {
		return err
	}
	_, ours := b.old[p]
	if !ours && have != "" && b.o.Force && !strings.Contains(have, "Written by \"ballast ") {
		return b.edit(p, have, text.String(), noGroup, why, file{})
	}
	return b.want(p, []byte(text.String()), 0o644, noGroup, why)
}

// local reports whether a registry is on this machine, where containerd uses plain HTTP.
func local(registry string) bool {
	name, _, err := net.SplitHostPort(registry)
	if err != nil {
		return false
	}
	ip := net.ParseIP(name)
	return name == "localhost" || ip != nil && ip.IsLoopback()
}

// groupOf returns the group of one of our files, which determines the service that reads it.
func (b *builder) groupOf(p string) group {
	switch {
	case filepath.Base(p) == "hosts.toml":
		return noGroup
	case filepath.Dir(p) == unitDir, filepath.Base(p) == "ballast", filepath.Base(p) == "ballastd", p == ownConfig:
		return daemonGroup
	}
	return containerdGroup
}

// stale adds the removal of files of a group that an earlier set-up wrote and this one does not.
func (b *builder) stale(g group) error {
	var paths []string
	for _, p := range slices.Sorted(maps.Keys(b.old)) {
		if _, wanted := b.files[p]; !wanted && b.groupOf(p) == g {
			paths = append(paths, p)
		}
	}
	return b.undoAll(paths, g, "it is no longer needed")
}

// finish sets the records written before and after the steps.
func (b *builder) finish() {
	done := record{Version: recordVersion, Ballast: api.ThisVersion().Version, Options: *b.o, Files: b.files, Pending: b.plan.Pending, Containerd: b.version}
	var dirs []string
	if b.record != nil {
		dirs, done.Previous = b.record.Dirs, b.record.Previous
		if b.programs == "" {
			done.Ballast = b.record.Ballast
		}
	}
	for _, s := range b.plan.Steps {
		if s.Action == Write || s.Action == Copy {
			dirs = append(dirs, b.missingDirs(s.Target)...)
		}
	}
	done.Dirs = sorted(dirs)
	next := done
	done.Files = map[string]file{}
	for p, f := range b.files {
		f.Before = ""
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
	next.Upgrading = b.copies
	b.plan.next, b.plan.done = next, done
}

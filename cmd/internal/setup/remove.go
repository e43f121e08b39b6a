package setup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
)

// NewRemoval returns the steps that remove ballast from a host, with all its files, including
// models. The order is the reverse of a set-up: first registries are used without the facade again,
// then ballast is removed from containerd while ballastd still removes its snapshots, then ballastd
// is removed.
//
// It returns errdefs.ErrFailedPrecondition, with their names, while containers use ballast, unless
// Options.Force is set: then their files stay.
func NewRemoval(ctx context.Context, o Options) (*Plan, error) {
	v, found, err := find(ctx, &o)
	if err != nil {
		return nil, err
	}
	if v.distro.readOnly {
		return &Plan{Distro: v.distro.name, Notes: []string{"remove the additions from the machine configuration; they cannot be removed on the node"}}, nil
	}
	o.NoService = o.NoService || found.Options.NoService
	b := v.builder(&o, "")
	b.old = found.Files
	busy, err := b.busy(ctx)
	if err != nil {
		return nil, err
	}
	next := *found
	next.Removing, next.Pending = true, sorted(append(slices.Clone(found.Pending), pendingContainerd))
	b.plan.next = next
	if err := b.remove(found, busy); err != nil {
		return nil, err
	}
	return b.plan, nil
}

// busy returns the users of ballast, and an error unless Force is set.
func (b *builder) busy(ctx context.Context) ([]string, error) {
	list, err := b.mounted()
	if err != nil {
		return nil, err
	}
	if b.running.containerd && b.running.loaded {
		conn, err := b.dial()
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		named, err := b.running.usersOf(ctx, conn)
		if err != nil {
			return nil, fmt.Errorf("list the containers that use ballast: %w", err)
		}
		if len(named) > 0 { // names are more useful than mounts
			list = named
		}
	}
	if len(list) > 0 && !b.o.Force {
		return nil, fmt.Errorf("these containers or mounts use ballast; end them first (kubectl drain, ballast unmount), or leave their files with --force:\n  %s: %w", strings.Join(list, "\n  "), errdefs.ErrFailedPrecondition)
	}
	return list, nil
}

// mounted returns the mounts on the host with files of the daemon's root, which belong to
// containers that outlive containerd.
func (b *builder) mounted() ([]string, error) {
	name, err := b.follow("/proc/1/mountinfo")
	if err != nil {
		return nil, err
	}
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) { // a root in which nothing runs
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, err := mountinfo.GetMountsFromReader(f, mountinfo.FSTypeFilter("overlay"))
	if err != nil {
		return nil, err
	}
	var at []string
	for _, m := range all {
		if strings.Contains(m.VFSOptions, b.config.Root+"/") {
			at = append(at, m.Mountpoint)
		}
	}
	return at, nil
}

// remove adds all steps.
func (b *builder) remove(found *record, busy []string) error {
	paths := slices.Sorted(maps.Keys(found.Files))
	var hosts, containerd, units, programs []string
	for _, p := range paths {
		switch {
		case filepath.Base(p) == "hosts.toml":
			hosts = append(hosts, p)
		case filepath.Dir(p) == unitDir:
			units = append(units, p)
		case p == filepath.Join(b.o.BinDir, "ballast"), p == filepath.Join(b.o.BinDir, "ballastd"):
			programs = append(programs, p)
		case !strings.HasPrefix(p, configDir+"/"):
			containerd = append(containerd, p)
		}
	}
	if err := b.undoAll(hosts, noGroup, "the registry is asked directly"); err != nil {
		return err
	}
	if b.running.containerd && b.running.loaded && b.running.daemon {
		b.step(Images, "images", "those that were unpacked into ballast; they can be pulled again")
	}
	slices.Reverse(containerd) // the order of the drop-in and its import does not matter
	if err := b.undoAll(containerd, containerdGroup, "containerd works without ballast"); err != nil {
		return err
	}
	if b.dirty[containerdGroup] || found.Removing && slices.Contains(found.Pending, pendingContainerd) || b.running.loaded {
		switch {
		case b.o.NoRestart:
			b.note("restart containerd: systemctl restart %s", b.plan.unit)
		case b.systemd:
			b.step(Restart, b.plan.unit, "it unloads ballast; containers continue")
		}
	}
	if b.o.NoService && b.running.daemon {
		b.note("ballastd runs elsewhere, and its files stay while it does: stop it, and run this command again")
		return nil
	}
	if len(units) > 0 && b.systemd {
		b.step(Disable, b.installed(), "it is no longer needed")
	}
	if d := filepath.Join(b.o.BinDir, "ballastd"); b.exists(d) {
		b.step(Unmount, d, "the lazy mount")
	}
	if err := b.undoAll(units, noGroup, "the unit of ballastd"); err != nil {
		return err
	}
	b.leave(busy)
	if err := b.undoAll(programs, noGroup, "the program"); err != nil {
		return err
	}
	if len(b.plan.Steps) > 0 || b.exists(stateDir) {
		b.step(Purge, stateDir, "the records of setup")
	}
	return nil
}

// leave adds the removal of the daemon's files, unless they are mounted.
func (b *builder) leave(busy []string) {
	if len(busy) > 0 {
		b.note("%s stays, because containers have it mounted; remove it (rm -rf) when they have ended: %s", b.config.Root, strings.Join(busy, ", "))
	} else {
		b.purgeStep(b.config.Root, "models")
	}
	b.purgeStep(filepath.Dir(b.config.Address), "sockets")
	b.purgeStep(configDir, "settings")
}

func (b *builder) purgeStep(p, why string) {
	if b.exists(p) {
		b.step(Purge, p, why)
	}
}

// undoAll adds the steps that undo files, and the removal of directories created for them.
func (b *builder) undoAll(paths []string, g group, why string) error {
	var all []Step
	for _, p := range paths {
		steps, err := b.undo(p, b.old[p])
		if err != nil {
			return err
		}
		b.gone[p] = len(steps) > 0 && steps[0].Action == Remove
		all = append(all, steps...)
	}
	dirs, err := b.emptied(paths)
	if err != nil {
		return err
	}
	for _, s := range append(all, dirs...) {
		s.Why, s.group = why, g
		b.add(s)
	}
	return nil
}

// emptied returns the removal of directories that were created for files and are otherwise empty,
// the innermost first.
func (b *builder) emptied(paths []string) ([]Step, error) {
	if b.record == nil {
		return nil, nil
	}
	var steps []Step
	for _, d := range slices.Backward(b.record.Dirs) { // sorted: subdirectories come later
		above := slices.ContainsFunc(paths, func(p string) bool { return strings.HasPrefix(p, d+"/") })
		if !above || !b.isDir(d) {
			continue
		}
		names, err := b.list(d)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(names, func(n string) bool { return !b.gone[filepath.Join(d, n)] }) {
			b.gone[d] = true
			steps = append(steps, Step{Action: Remove, Target: d})
		}
	}
	return steps, nil
}

// undo returns the steps that undo a file: the original is restored, or our part is removed.
func (b *builder) undo(p string, f file) ([]Step, error) {
	have, mode, err := b.read(p)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil && (f.Original || f.Import != "" || f.Block) {
		return nil, err
	}
	text := string(have)
	untouched := f.Digest != "" && verify.Bytes(f.Digest, have) == nil
	restore := func(data []byte) []Step {
		if string(data) == text {
			return nil
		}
		return []Step{{Action: Restore, Target: p, data: data, mode: mode}}
	}
	if f.Original {
		was, m, err := b.read(filepath.Join(originals, p))
		if err == nil && (untouched || f.Import == "" && !f.Block) {
			mode = m
			return restore(was), nil
		}
		if err == nil && string(was) == text {
			return nil, nil
		}
	}
	switch {
	case f.Import != "" && (!untouched || f.Original):
		fresh, err := dropImport(text, f.Import)
		if err != nil {
			return nil, fmt.Errorf("%s: %w; take %q out of its imports by hand", p, err, f.Import)
		}
		return restore([]byte(fresh)), nil
	case f.Block:
		if fresh := withoutBlock(text); strings.TrimSpace(strings.ReplaceAll(fresh, `{{ template "base" . }}`, "")) != "" {
			return restore([]byte(fresh)), nil
		}
	}
	return []Step{{Action: Remove, Target: p}}, nil
}

// discover returns the record of a host, or an equivalent record for a manual set-up.
func (v *view) discover() (*record, error) {
	if v.record != nil {
		return v.record, nil
	}
	r := &record{Version: recordVersion, Files: map[string]file{}}
	at, err := findImports(v.main)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", v.distro.config, err)
	}
	dir := filepath.Dir(v.distro.config)
	candidates := []string{
		filepath.Join(unitDir, serviceName), filepath.Join(unitDir, socketName), filepath.Join(unitDir, holderName),
		filepath.Join(DefaultBinDir, "ballast"), filepath.Join(DefaultBinDir, "ballastd"),
	}
	for _, d := range append(at.globDirs(dir), filepath.Join(dir, "conf.d")) {
		candidates = append(candidates, filepath.Join(d, dropInName))
	}
	named, err := v.named()
	if err != nil {
		return nil, err
	}
	for _, n := range named {
		candidates = append(candidates, v.hostsFile(n))
	}
	for _, p := range candidates {
		if v.exists(p) {
			r.Files[p] = file{}
		}
	}
	if r.Options.Registries, err = v.closed(); err != nil {
		return nil, err
	}
	r.Options.NoService = !v.exists(filepath.Join(unitDir, serviceName))
	return r, nil
}

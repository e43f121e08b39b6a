package setup

import (
	"context"
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/host/containerdversion"
	"github.com/ballast-dev/ballast/cmd/internal/installer/node"
	"github.com/ballast-dev/ballast/cmd/internal/installer/snippet"
	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
)

// dropInName is the name of our drop-in in a directory imported by containerd.
const dropInName = "ballast.toml"

// foreignPart reads the configuration of containerd as it is without our drop-in, and checks that it leaves room
// for ours.
func (b *builder) foreignPart(ctx context.Context) (err error) {
	changes := node.Changes{}
	for p := range b.old {
		if filepath.Base(p) == dropInName {
			changes[p] = nil
		}
	}
	if b.theirs, err = b.Load(ctx, b.Distro.Config, b.Version, changes); err != nil {
		return err
	}
	b.beside = b.theirs
	if !b.Distro.Generated && !b.Distro.ReadOnly {
		if dir, imported := b.dropInDir(); !imported {
			if main, err := withImport(b.main, "version = 2", filepath.Join(dir, "*.toml")); err == nil { // otherwise imports says why not
				changes[b.Distro.Config] = []byte(main)
				if b.beside, err = b.Load(ctx, b.Distro.Config, b.Version, changes); err != nil {
					return err
				}
			}
		}
	}
	if b.o.SnapshotterOnly || b.Distro.ReadOnly {
		return nil
	}
	b.hostsDir, err = b.registryDir()
	return err
}

// registryDir returns the directory of hosts.toml files for CRI: the one that it uses, or the usual one.
//
// CRI's list of two directories, which is also its default since 2.2, is one directory to pulls by the
// transfer service, so the drop-in names a single one, and files of others in the other would be lost.
func (b *builder) registryDir() (string, error) {
	dirs := b.theirs.HostsDirs()
	if now := b.Containerd.HostsDirs(); len(dirs) > 1 && len(now) == 1 { // by our drop-in: nothing is lost any more
		return now[0], nil
	}
	var used []string
	for _, d := range dirs {
		theirs, err := b.othersIn(d)
		if err != nil {
			return "", err
		}
		if theirs {
			used = append(used, d)
		}
	}
	switch {
	case len(used) > 1 && !b.o.Force:
		return "", fmt.Errorf("containerd looks for hosts.toml files in %s, and pulls through ballast need one directory. Move all of them to %s, and set config_path = %q: %w",
			strings.Join(used, " and "), used[0], used[0], errdefs.ErrFailedPrecondition)
	case len(used) > 0:
		return used[0], nil
	case len(dirs) == 1:
		return dirs[0], nil
	}
	return b.Distro.HostsDir, nil
}

// othersIn reports whether a directory of hosts.toml files has files that setup has not written.
func (b *builder) othersIn(dir string) (bool, error) {
	names, err := b.List(dir)
	if err != nil {
		return false, err
	}
	for _, n := range names {
		sub := filepath.Join(dir, n)
		if !b.IsDir(sub) {
			return true, nil
		}
		files, err := b.List(sub)
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(files, func(f string) bool { _, ours := b.old[filepath.Join(sub, f)]; return !ours }) {
			return true, nil
		}
	}
	return false, nil
}

// dropIn returns our part of containerd's configuration.
func (b *builder) dropIn() (string, error) {
	if b.Version.ReplacesTables() && !b.o.SnapshotterOnly {
		b.note("containerd %s ignores drop-ins for Kubernetes: copy the commented lines at the end of %s into the tables of %s, and restart it", b.Version, dropInName, b.Distro.Config)
	}
	s := snippet.Containerd{
		Main: b.theirs.Main(), Address: b.Config.Address, Root: b.Config.Root, Platform: node.HostPlatform(), HostsDir: b.hostsDir,
		RuntimeHandler: b.o.RuntimeHandler, NoCRI: b.o.SnapshotterOnly,
	}
	if b.Unknown == nil {
		s.Version = b.Version
	}
	if b.o.RuntimeHandler != "" {
		var err error
		if s.Handler, err = b.HandlerLike(b.beside, b.o.Like, b.o.RuntimeHandler); err != nil {
			return "", err
		}
	}
	for _, u := range b.beside.Unpacks() {
		if u.Snapshotter == snippet.Snapshotter {
			continue
		}
		if slices.ContainsFunc(u.Keys, func(k string) bool { return !slices.Contains([]string{"platform", "snapshotter", "differ"}, k) }) && !b.o.Force {
			return "", fmt.Errorf("the entry for %s of unpack_config in %s has the keys %s, and the drop-in can repeat platform, snapshotter and differ only: configure containerd by hand (ballast config containerd), or use --force: %w",
				u.Snapshotter, b.beside.From(containerdversion.PluginTransfer, "unpack_config"), strings.Join(u.Keys, ", "), errdefs.ErrFailedPrecondition)
		}
		s.Unpack = append(s.Unpack, snippet.Unpack{Platform: u.Platform, Snapshotter: u.Snapshotter, Differ: u.Differ})
	}
	for _, d := range b.beside.Differs() {
		if d != "walking" && d != snippet.Differ {
			s.Differs = append(s.Differs, d)
		}
	}
	var text strings.Builder
	err := s.Write(&text)
	return text.String(), err
}

// versionLine matches the version of a configuration of containerd.
var versionLine = regexp.MustCompile(`(?m)^version = \d+$`)

// containerd adds our part of containerd's configuration, and the restart that makes containerd
// read it.
func (b *builder) containerd() error {
	if b.Distro.Generated && b.theirs.Main().OldTables && b.o.RuntimeHandler != "" && b.Version.RuntimePlatforms() {
		return b.oldTemplate()
	}
	text, err := b.dropIn()
	if err != nil {
		return err
	}
	add := b.imports
	if b.Distro.Generated {
		add = b.generated
	}
	if err := add(text); err != nil {
		return err
	}
	if err := b.stale(containerdGroup); err != nil {
		return err
	}
	restart := b.dirty[containerdGroup] || b.pending(pendingContainerd)
	why := "its configuration has changed; containers continue"
	if b.State != nil && !b.running.loaded && !restart {
		restart, why = true, "it has not read its configuration"
	}
	if restart {
		b.restartContainerd(why)
	}
	if b.o.RuntimeHandler != "" && !b.o.NoService && b.dirty[containerdGroup] {
		b.note("the RuntimeClass of ballast selects nodes with a label: kubectl label node NODE ballast.dev/node=true; pods need runtimeClassName and the annotation io.containerd.cri.runtime-handler: %s", b.o.RuntimeHandler)
	}
	if b.Distro.Name == node.EKS && b.dirty[containerdGroup] {
		b.note("nodeadm writes %s anew at each boot. To keep the import, put this into the NodeConfig of the node group, below spec.containerd.config: imports = [\"/etc/containerd/conf.d/*.toml\"]", b.Distro.Config)
	}
	return nil
}

// restartContainerd adds the restart, or records that it is left to do.
func (b *builder) restartContainerd(why string) {
	if !b.o.NoRestart {
		b.step(Restart, b.Unit, why)
		return
	}
	b.plan.Pending = append(b.plan.Pending, pendingContainerd)
	b.note("restart containerd: systemctl restart %s", b.Unit)
}

// dropInDir returns the directory for the drop-in, and whether containerd's main file imports all files of it.
func (b *builder) dropInDir() (dir string, imported bool) {
	base := filepath.Dir(b.Distro.Config)
	dir = filepath.Join(base, "conf.d")
	at, err := findImports(b.main)
	if err != nil {
		return dir, false // whoever edits it says why
	}
	dirs := at.globDirs(base)
	if len(dirs) > 0 && !slices.Contains(dirs, dir) {
		dir = dirs[len(dirs)-1]
	}
	return dir, len(dirs) > 0
}

// imports adds the drop-in, and its import by containerd's main file unless that already has a
// matching one.
func (b *builder) imports(text string) error {
	to, imported := b.dropInDir()
	why := "ballast as snapshotter and differ of all pods"
	switch {
	case b.o.SnapshotterOnly:
		why = "ballast as snapshotter and differ of ctr and nerdctl"
	case b.o.RuntimeHandler != "":
		why = "ballast as snapshotter and differ of pods of the runtime handler " + b.o.RuntimeHandler
	}
	if err := b.wantDropIn(filepath.Join(to, dropInName), text, why); err != nil {
		return err
	}
	glob := filepath.Join(to, "*.toml")
	_, ours := b.old[b.Distro.Config]
	if imported && !ours {
		return nil
	}
	main, err := withImport(b.main, versionLine.FindString(text), glob)
	if err != nil {
		return fmt.Errorf("%s: %w; write imports = [%q] there, before the first table, and run this again", b.Distro.Config, err, glob)
	}
	return b.edit(b.Distro.Config, b.main, main, containerdGroup, "imports "+glob, file{Import: glob})
}

// withImport returns a main file of containerd with one additional import. An empty one gets a line with the version.
func withImport(text, version, glob string) (string, error) {
	if text == "" {
		text = "# Written by \"ballast setup\".\n" + version + "\n"
	}
	return addImport(text, glob)
}

// wantDropIn is want for the drop-in. containerd need not read it again if only its wording
// changes.
func (b *builder) wantDropIn(p, text, why string) error {
	have, err := b.Text(p)
	if err != nil {
		return err
	}
	g := containerdGroup
	var was, is map[string]any
	if have != "" && toml.Unmarshal([]byte(have), &was) == nil && toml.Unmarshal([]byte(text), &is) == nil && reflect.DeepEqual(was, is) {
		g = noGroup
	}
	return b.want(p, []byte(text), 0o644, g, why)
}

// The lines around our part of a template.
const (
	blockBegin = "# BEGIN of ballast; written by \"ballast setup\", which replaces it"
	blockEnd   = "# END of ballast"
)

// generated adds our part where the distribution generates containerd's configuration: as a drop-in
// if the generated file imports some, otherwise as a template, which cannot repeat what the base
// has.
// https://github.com/k3s-io/k3s/pull/13680
func (b *builder) generated(text string) error {
	dir := filepath.Dir(b.Distro.Config)
	if b.main == "" {
		return fmt.Errorf("%s does not exist yet: start %s once: %w", b.Distro.Config, b.Unit, errdefs.ErrFailedPrecondition)
	}
	at, err := findImports(b.main)
	if err != nil {
		return fmt.Errorf("%s: %w", b.Distro.Config, err)
	}
	if dirs := at.globDirs(dir); len(dirs) > 0 {
		return b.wantDropIn(filepath.Join(dirs[0], dropInName), text, "ballast as snapshotter and differ")
	}
	if b.o.RuntimeHandler == "" && !b.o.SnapshotterOnly {
		return fmt.Errorf("this version of %s has no directory for drop-ins, and its template cannot change the snapshotter of all pods: use --runtime-handler ballast, or a version from 1.36 on: %w", b.Distro.Name, errdefs.ErrFailedPrecondition)
	}
	p := filepath.Join(dir, "config-v3.toml.tmpl")
	if format := b.theirs.Main().Format; format > 0 && format < 3 {
		if !b.Version.ReplacesTables() {
			return b.oldTemplate()
		}
		return fmt.Errorf("%s has the containerd of before 2.0, whose imports replace whole tables: take a version from 1.32 on: %w", b.Distro.Name, errdefs.ErrFailedPrecondition)
	}
	have, err := b.Text(p)
	if err != nil {
		return err
	}
	b.block = templatePart(text)
	return b.edit(p, have, withBlock(have, b.block), containerdGroup, "ballast as snapshotter and differ of pods of the runtime handler "+b.o.RuntimeHandler, file{Block: true})
}

// oldTemplate says what to do about a configuration that a distribution with containerd 2.x generates in version 2: it
// does so from a template of that name of others, and in version 3 otherwise.
// https://docs.k3s.io/advanced#configuring-containerd
func (b *builder) oldTemplate() error {
	return fmt.Errorf("%s has version 2 because %s writes it from %s: rename that to config-v3.toml.tmpl, write its tables for version 3, and restart %s: %w",
		b.Distro.Config, b.Distro.Name, filepath.Join(filepath.Dir(b.Distro.Config), "config.toml.tmpl"), b.Unit, errdefs.ErrFailedPrecondition)
}

// withBlock returns a template with our part at its end.
func withBlock(text, block string) string {
	rest := withoutBlock(text)
	if rest == "" {
		rest = "{{ template \"base\" . }}\n"
	}
	return strings.TrimRight(rest, "\n") + "\n\n" + blockBegin + "\n" + block + blockEnd + "\n"
}

// withoutBlock returns a template without our part.
func withoutBlock(text string) string {
	before, rest, ok := strings.Cut(text, blockBegin)
	_, after, end := strings.Cut(rest, blockEnd+"\n")
	if !ok || !end {
		return text
	}
	return strings.TrimRight(before, "\n") + "\n" + after
}

// templatePart returns the part of a drop-in that can follow the base of a template: without the
// version and the tables of the base.
func templatePart(text string) string {
	var out strings.Builder
	skip := false
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		if strings.HasPrefix(trimmed, "[") {
			skip = strings.HasPrefix(trimmed, "[plugins.\""+containerdversion.PluginImages+"\"")
		}
		if skip || strings.HasPrefix(trimmed, "#") || versionLine.MatchString(trimmed) {
			continue
		}
		out.WriteString(line)
	}
	return strings.TrimLeft(out.String(), "\n")
}

// talos returns the plan for a system that can be changed only from outside: it has notes but no
// steps.
func (b *builder) talos() (*Plan, error) {
	text, err := b.dropIn()
	if err != nil {
		return nil, err
	}
	text = text[strings.Index(text, "[proxy_plugins"):]
	var hosts strings.Builder
	for _, r := range b.o.Registries {
		h, err := HostsOf(b.Config)
		if err != nil {
			return nil, err
		}
		h.Registry = r
		var one strings.Builder
		if err := h.Write(&one); err != nil {
			return nil, err
		}
		fmt.Fprintf(&hosts, "    - path: %s\n      op: create\n      permissions: 0o644\n      content: |\n%s", b.hostsFile(r), indent(one.String(), 8))
	}
	b.note("the system of Talos is read-only and has no service for ballastd: run it with the DaemonSet of the chart, and patch the machine configuration with the documents on standard output; before Talos 1.14 put the content of the first into /etc/cri/conf.d/20-customization.part of machine.files instead")
	b.plan.Manifest = "apiVersion: v1alpha1\nkind: CRICustomizationConfig\nname: ballast\ncontent: |\n" + indent(text, 2)
	if hosts.Len() > 0 {
		b.note("mirrors in the machine configuration have no effect any more, because registry.config_path replaces them")
		b.plan.Manifest += "---\nmachine:\n  files:\n" + hosts.String()
	}
	return b.plan, nil
}

// indent puts n spaces before each line that is not empty.
func indent(text string, n int) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) != "" {
			out.WriteString(strings.Repeat(" ", n))
		}
		out.WriteString(line)
	}
	return out.String()
}

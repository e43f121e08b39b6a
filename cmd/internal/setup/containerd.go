package setup

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/containerdversion"
	"github.com/ballast-dev/ballast/cmd/internal/snippet"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/pelletier/go-toml/v2"
)

// dropInName is the name of our drop-in in a directory imported by containerd.
const dropInName = "ballast.toml"

// containerdVersion returns the version of the host's containerd: as given, as answered, as
// recorded, or as printed by its program. Zero, which means the newest, if it is unknown.
func (b *builder) containerdVersion() (containerdversion.Version, error) {
	b.version = cmp.Or(b.o.ContainerdVersion, b.running.version)
	if b.version == "" && b.record != nil {
		b.version = b.record.Containerd
	}
	if b.version == "" {
		// containerd github.com/containerd/containerd/v2 v2.4.2 <revision>
		if said, err := b.run(context.Background(), "containerd", "--version"); err == nil && len(strings.Fields(said)) > 2 {
			b.version = strings.Fields(said)[2]
		}
	}
	if b.version == "" {
		return containerdversion.Version{}, nil
	}
	v, err := containerdversion.Parse(b.version)
	if err != nil {
		return v, fmt.Errorf("%w; use --containerd-version", err)
	}
	b.version = v.String()
	return v, nil
}

// dropIn returns our part of containerd's configuration.
func (b *builder) dropIn() (string, error) {
	version, err := b.containerdVersion()
	if err != nil {
		return "", err
	}
	if version.ReplacesTables() && version.Major > 0 && !b.o.SnapshotterOnly {
		b.note("containerd %s ignores drop-ins for Kubernetes: copy the commented lines at the end of %s into the tables of %s, and restart it", version, dropInName, b.distro.config)
	}
	format, _ := b.setting("version").(int64)
	s := snippet.Containerd{
		Main:    containerdversion.File{Format: int(format), OldTables: b.setting("plugins", containerdversion.PluginCRI) != nil},
		Address: b.config.Address, Root: b.config.Root, Platform: platforms.Format(platforms.DefaultSpec()), HostsDir: b.distro.hostsDir,
		RuntimeHandler: b.o.RuntimeHandler, SystemdCgroup: b.o.RuntimeHandler != "" && b.systemdCgroup(),
		Version: version, NoCRI: b.o.SnapshotterOnly,
	}
	if s.Unpack, s.Differs, err = b.own(); err != nil {
		return "", err
	}
	var text strings.Builder
	err = s.Write(&text)
	return text.String(), err
}

// own returns the differs that containerd's main file has for other snapshotters, which our drop-in
// must repeat.
func (b *builder) own() (unpack []snippet.Unpack, differs []string, err error) {
	entries, _ := b.setting("plugins", containerdversion.PluginTransfer, "unpack_config").([]any)
	for _, e := range entries {
		m, _ := e.(map[string]any)
		var u snippet.Unpack
		for k, to := range map[string]*string{"platform": &u.Platform, "snapshotter": &u.Snapshotter, "differ": &u.Differ} {
			*to, _ = m[k].(string)
			delete(m, k)
		}
		if len(m) > 0 && u.Snapshotter != snippet.Snapshotter && !b.o.Force {
			return nil, nil, fmt.Errorf("an entry of unpack_config in %s has more keys than platform, snapshotter and differ, which the drop-in would lose: configure containerd by hand, or use --force: %w", b.distro.config, errdefs.ErrFailedPrecondition)
		}
		if u.Snapshotter != snippet.Snapshotter {
			unpack = append(unpack, u)
		}
	}
	list, _ := b.setting("plugins", containerdversion.PluginDiff, "default").([]any)
	for _, d := range list {
		if name, _ := d.(string); name != "" && name != "walking" && name != snippet.Differ {
			differs = append(differs, name)
		}
	}
	return unpack, differs, nil
}

// versionLine matches the version of a configuration of containerd.
var versionLine = regexp.MustCompile(`(?m)^version = \d+$`)

// containerd adds our part of containerd's configuration, and the restart that makes containerd
// read it.
func (b *builder) containerd() error {
	text, err := b.dropIn()
	if err != nil {
		return err
	}
	add := b.imports
	if b.distro.generated {
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
	if b.running.containerd && !b.running.loaded && !restart {
		restart, why = true, "it has not read its configuration"
	}
	if restart {
		b.restartContainerd(why)
	}
	if b.distro.name == EKS && b.dirty[containerdGroup] {
		b.note("nodeadm writes %s anew at each boot. To keep the import, put this into the NodeConfig of the node group, below spec.containerd.config: imports = [\"/etc/containerd/conf.d/*.toml\"]", b.distro.config)
	}
	return nil
}

// restartContainerd adds the restart, or records that it is left to do.
func (b *builder) restartContainerd(why string) {
	if !b.o.NoRestart {
		b.step(Restart, b.plan.unit, why)
		return
	}
	b.plan.Pending = append(b.plan.Pending, pendingContainerd)
	b.note("restart containerd: systemctl restart %s", b.plan.unit)
}

// imports adds the drop-in, and its import by containerd's main file unless that already has a
// matching one.
func (b *builder) imports(text string) error {
	dir := filepath.Dir(b.distro.config)
	at, err := findImports(b.main)
	if err != nil {
		return fmt.Errorf("%s: %w", b.distro.config, err)
	}
	dirs := at.globDirs(dir)
	to := filepath.Join(dir, "conf.d")
	if len(dirs) > 0 && !slices.Contains(dirs, to) {
		to = dirs[len(dirs)-1]
	}
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
	_, ours := b.old[b.distro.config]
	if len(dirs) > 0 && !ours {
		return nil
	}
	main := b.main
	if main == "" {
		main = "# Written by \"ballast setup\".\n" + versionLine.FindString(text) + "\n"
	}
	if main, err = addImport(main, glob); err != nil {
		return fmt.Errorf("%s: %w; write imports = [%q] there, before the first table, and run this again", b.distro.config, err, glob)
	}
	return b.edit(b.distro.config, b.main, main, containerdGroup, "imports "+glob, file{Import: glob})
}

// wantDropIn is want for the drop-in. containerd need not read it again if only its wording
// changes.
func (b *builder) wantDropIn(p, text, why string) error {
	have, err := b.text(p)
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
	dir := filepath.Dir(b.distro.config)
	if b.main == "" {
		return fmt.Errorf("%s does not exist yet: start %s once: %w", b.distro.config, b.plan.unit, errdefs.ErrFailedPrecondition)
	}
	at, err := findImports(b.main)
	if err != nil {
		return fmt.Errorf("%s: %w", b.distro.config, err)
	}
	if dirs := at.globDirs(dir); len(dirs) > 0 {
		return b.wantDropIn(filepath.Join(dirs[0], dropInName), text, "ballast as snapshotter and differ")
	}
	if b.o.RuntimeHandler == "" && !b.o.SnapshotterOnly {
		return fmt.Errorf("this version of %s has no directory for drop-ins, and its template cannot change the snapshotter of all pods: use --runtime-handler ballast, or a version from 1.36 on: %w", b.distro.name, errdefs.ErrFailedPrecondition)
	}
	p := filepath.Join(dir, "config-v3.toml.tmpl")
	if version, ok := b.parsed["version"].(int64); ok && version < 3 {
		return fmt.Errorf("%s has the containerd of before 2.0, whose imports replace whole tables: take a version from 1.32 on: %w", b.distro.name, errdefs.ErrFailedPrecondition)
	}
	have, err := b.text(p)
	if err != nil {
		return err
	}
	rest := withoutBlock(have)
	if rest == "" {
		rest = "{{ template \"base\" . }}\n"
	}
	whole := strings.TrimRight(rest, "\n") + "\n\n" + blockBegin + "\n" + templatePart(text) + blockEnd + "\n"
	return b.edit(p, have, whole, containerdGroup, "ballast as snapshotter and differ of pods of the runtime handler "+b.o.RuntimeHandler, file{Block: true})
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
		h, err := HostsOf(b.config)
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
	b.say("the system of Talos is read-only and has no service for ballastd: run it with the DaemonSet of the chart, and patch the machine configuration with this; before Talos 1.14 put the content into /etc/cri/conf.d/20-customization.part of machine.files instead:\n\n" +
		"apiVersion: v1alpha1\nkind: CRICustomizationConfig\nname: ballast\ncontent: |\n" + indent(text, 2))
	if hosts.Len() > 0 {
		b.say("and the hosts.toml files. Mirrors in the machine configuration have no effect any more, because registry.config_path above replaces them:\n\nmachine:\n  files:\n" + hosts.String())
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

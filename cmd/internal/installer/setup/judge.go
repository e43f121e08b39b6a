package setup

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/host/containerdversion"
	"github.com/ballast-dev/ballast/cmd/internal/installer/node"
	"github.com/ballast-dev/ballast/cmd/internal/installer/snippet"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/errdefs"
)

// judge checks the configuration of containerd that the plan leads to, as doctor checks the one that is
// there, and that nothing of others changes. It returns errdefs.ErrFailedPrecondition with all conflicts
// and what to do about each; Force accepts changes of settings of others, but no configuration with
// which ballast does not work.
func (b *builder) judge(ctx context.Context) error {
	planned, err := b.planned(ctx)
	if err != nil || planned == nil {
		return err
	}
	k := node.Checker{Host: b.Host, Config: b.Config, Unit: b.Unit}
	k.Check(planned)
	for _, f := range k.Findings {
		if f.Check == node.CheckNeighbours && !b.fixing {
			b.note("%s", f.Text())
		}
	}
	var all []string
	for _, f := range k.Failed() {
		if f.Check == node.CheckCRI && !b.changesCRI() {
			continue
		}
		all = append(all, f.Text())
	}
	if len(all) == 0 || b.o.Force {
		for _, text := range b.foreignChanges(planned) {
			if b.o.Force {
				b.note("%s", text)
			} else {
				all = append(all, text)
			}
		}
	}
	switch {
	case len(all) == 0:
		return nil
	case b.fixing:
		b.plan.Notes = append(b.plan.Notes, all...)
		return nil
	}
	return fmt.Errorf("containerd's configuration conflicts with ballast:\n  %s\nnothing was changed: %w", strings.Join(all, "\n  "), errdefs.ErrFailedPrecondition)
}

// changesCRI reports whether the drop-in has settings of CRI.
func (b *builder) changesCRI() bool { return !b.o.SnapshotterOnly && !b.Version.ReplacesTables() }

// planned returns the configuration of containerd after the plan; nil if that cannot be known.
func (b *builder) planned(ctx context.Context) (*node.Containerd, error) {
	changes := node.Changes{}
	if b.block != "" {
		if strings.Contains(b.main, "[proxy_plugins."+snippet.Snapshotter+"]") { // generated with an earlier block
			return nil, nil
		}
		changes[b.Distro.Config] = []byte(b.main + "\n" + b.block)
	}
	for _, s := range b.plan.Steps {
		switch {
		case s.group != containerdGroup && filepath.Base(s.Target) != dropInName:
		case s.Action == Remove:
			changes[s.Target] = nil
		case s.Action == Write || s.Action == Restore:
			changes[s.Target] = s.data
		}
	}
	return b.Load(ctx, b.Distro.Config, b.Version, changes)
}

// foreignChanges returns the settings of others that a planned configuration changes, with what to do.
func (b *builder) foreignChanges(planned *node.Containerd) []string {
	var out []string
	if files, settings := b.brought(); len(settings) > 0 {
		out = append(out, fmt.Sprintf("containerd does not read %s now, and would with the import that setup adds: it sets %s. Move it away, or import it yourself; --force imports it",
			strings.Join(files, ", "), strings.Join(settings, ", ")))
	}
	for _, d := range node.Diff(b.beside, planned) {
		if !b.mayChange(d) {
			from := ""
			if f := cmp.Or(b.beside.From(d.Keys[0], d.Keys[1:]...), planned.From(d.Keys[0], d.Keys[1:]...)); f != "" {
				from = " of " + f
			}
			out = append(out, fmt.Sprintf("the drop-in would change %s%s from %v to %v%s", d, from, d.Before, d.After, b.advice(d)))
		}
	}
	if len(b.theirs.Registry("configs")) > 0 && b.theirs.Setting(containerdversion.PluginImages, "registry", "config_path") == nil && b.changesCRI() {
		out = append(out, fmt.Sprintf("registry.configs of %s has no effect any more when the drop-in sets config_path: move its settings to hosts.toml files in %s, and set config_path there yourself",
			b.theirs.From(containerdversion.PluginImages, "registry", "configs"), b.hostsDir))
	}
	return out
}

// brought returns the files of others that only our import brings into effect, and what they set besides longer lists.
func (b *builder) brought() (files, settings []string) {
	for _, f := range b.beside.Files {
		if f.Path != b.Distro.Config && !slices.ContainsFunc(b.theirs.Files, func(g node.File) bool { return g.Path == f.Path }) {
			files = append(files, f.Path)
		}
	}
	for _, d := range node.Diff(b.theirs, b.beside) {
		if _, list := d.After.([]any); !list || !keeps(d.Before, d.After) {
			settings = append(settings, fmt.Sprintf("%s to %v", d, d.After))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.beside.Proxies)) {
		if _, ok := b.theirs.Proxies[name]; !ok {
			settings = append(settings, "proxy_plugins."+name)
		}
	}
	return files, settings
}

// mayChange reports whether a setting is ballast's, or one that ballast adds to without taking anything
// from others.
func (b *builder) mayChange(d node.Difference) bool {
	keys := strings.Join(d.Keys, "\x00")
	at := func(parts ...string) bool { return keys == strings.Join(parts, "\x00") }
	under := func(parts ...string) bool { return strings.HasPrefix(keys+"\x00", strings.Join(parts, "\x00")+"\x00") }
	switch {
	case d.Keys[0] == "proxy_plugins":
		return d.Keys[1] == snippet.Snapshotter || d.Keys[1] == snippet.Differ
	case at(containerdversion.PluginDiff, "default"), at(containerdversion.PluginTransfer, "unpack_config"):
		return keeps(d.Before, d.After)
	case at(containerdversion.PluginImages, "snapshotter"):
		s, _ := d.Before.(string)
		return slices.Contains([]string{"", defaults.DefaultSnapshotter, snippet.Snapshotter}, s)
	case at(containerdversion.PluginImages, "registry", "config_path"):
		s, _ := d.Before.(string)
		return !slices.ContainsFunc(filepath.SplitList(s), func(dir string) bool {
			theirs, err := b.othersIn(dir)
			return dir != b.hostsDir && (err != nil || theirs)
		}) || slices.Equal(b.Containerd.HostsDirs(), []string{b.hostsDir}) // it has that value now
	case b.o.RuntimeHandler != "" && under(containerdversion.PluginRuntime, "containerd", "runtimes", b.o.RuntimeHandler),
		b.o.RuntimeHandler != "" && under(containerdversion.PluginImages, "runtime_platforms", b.o.RuntimeHandler):
		return d.Before == nil
	}
	return false
}

// keeps reports whether a list has all elements of another.
func keeps(before, after any) bool {
	was, _ := before.([]any)
	is, _ := after.([]any)
	return !slices.ContainsFunc(was, func(v any) bool {
		return !slices.ContainsFunc(is, func(w any) bool { return reflect.DeepEqual(v, w) })
	})
}

// advice returns what to do about a setting of others.
func (b *builder) advice(d node.Difference) string {
	if d.Keys[len(d.Keys)-1] == "snapshotter" {
		return "; leave pods to it with --snapshotter-only, or use ballast for some pods with --runtime-handler ballast. --force replaces it"
	}
	return "; --force replaces it"
}

package node

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/door/hostsfile"
	"github.com/ballast-dev/ballast/cmd/internal/host/containerdversion"
	"github.com/containerd/containerd/v2/defaults"
)

// CheckNeighbours is the check that names other programs which change how this node pulls images or
// runs containers.
const CheckNeighbours = "neighbours"

// Other snapshotters, by the usual name of their proxy plugin and by the file name of their socket.
// https://github.com/containerd/nydus-snapshotter/blob/v0.15.0/misc/snapshotter/snapshotter.sh
// https://github.com/containerd/stargz-snapshotter/blob/v0.18.2/docs/INSTALL.md
// https://github.com/awslabs/soci-snapshotter/blob/v0.11.1/docs/kubernetes.md
var snapshotters = []struct{ name, plugin, socket string }{
	{"nydus", "nydus", "containerd-nydus-grpc.sock"},
	{"stargz", "stargz", "containerd-stargz-grpc.sock"},
	{"SOCI", "soci", "soci-snapshotter-grpc.sock"},
}

const (
	// nydusBackup is added to the name of the file that nydus' installer restores when it is removed.
	nydusBackup = ".bak.nydus"

	// nvidiaRuntime begins the names of NVIDIA's runtimes, which other handlers name by their path.
	// https://github.com/NVIDIA/nvidia-container-toolkit/blob/v1.18.0/cmd/nvidia-ctk/README.md
	nvidiaRuntime = "nvidia-container-runtime"
)

// neighbours names other programs, and says what matters where ballast is there too.
func (k *Checker) neighbours(ours string) {
	k.snapshotters(ours)
	k.mirrors()
	k.nvidia(ours)
}

// snapshotters names other proxy snapshotters, and those that a distribution has built in.
func (k *Checker) snapshotters(ours string) {
	found := map[string]string{} // names of programs by names of plugins
	for plugin, p := range k.c.Proxies {
		if p.Type != "snapshot" || plugin == ours || k.Host.same(strings.TrimPrefix(p.Address, "unix://"), k.Config.Address) {
			continue
		}
		found[plugin] = plugin
		for _, s := range snapshotters {
			if plugin == s.plugin || filepath.Base(p.Address) == s.socket {
				found[plugin] = s.name
			}
		}
	}
	for _, s := range snapshotters {
		if k.c.snapshotter() == s.plugin || len(k.c.handlers(s.plugin)) > 0 {
			found[s.plugin] = s.name
		}
	}
	for _, plugin := range slices.Sorted(maps.Keys(found)) {
		text := fmt.Sprintf("%s (plugin %s) is the snapshotter of %s; ballast is that of %s", found[plugin], plugin, k.c.pods(plugin), k.c.pods(ours))
		if backup := k.c.File + nydusBackup; plugin == "nydus" && k.Host.Exists(backup) {
			text += fmt.Sprintf("; removing nydus restores %s, so run ballast setup after it", backup)
		}
		k.OK(CheckNeighbours, "%s", text)
	}
}

// pods says which pods use a snapshotter.
func (c *Containerd) pods(snapshotter string) string {
	var own, others []string
	for name, r := range c.runtimes() {
		switch s, _ := r["snapshotter"].(string); s {
		case "":
		case snapshotter:
			own = append(own, name)
		default:
			others = append(others, name)
		}
	}
	slices.Sort(own)
	slices.Sort(others)
	switch {
	case c.snapshotter() == snapshotter && len(others) == 0:
		return "all pods"
	case c.snapshotter() == snapshotter:
		return "all pods but those of the runtime handler " + strings.Join(others, ", ")
	case len(own) > 0:
		return "pods of the runtime handler " + strings.Join(own, ", ")
	}
	return "no pod, only of ctr and nerdctl"
}

// mirrors names programs that write hosts.toml files.
func (k *Checker) mirrors() {
	dirs := k.c.HostsDirs()
	if len(dirs) == 0 {
		dirs = []string{config.ContainerdHostsDir}
	}
	for _, dir := range dirs {
		names, err := k.Host.List(dir)
		if err != nil {
			continue // reported with the hosts.toml files
		}
		wrote := map[string][]string{}
		for _, n := range names {
			if who := hostsfile.Writer(k.Host.Root, filepath.Join(dir, n, "hosts.toml")); who != "" {
				wrote[who] = append(wrote[who], n)
			}
		}
		if list := wrote[hostsfile.Dragonfly]; len(list) > 0 {
			k.OK(CheckNeighbours, "Dragonfly's dfinit writes hosts.toml of %s in %s at each start: models of these arrive unconverted. Registries with a hosts.toml of ballast go to ballast; do not give them to dfinit as well",
				strings.Join(list, ", "), dir)
		}
		if k.Host.IsDir(filepath.Join(dir, hostsfile.SpegelBackup)) && k.Config.Facade.Listen != "" {
			k.Warn(CheckNeighbours, fmt.Sprintf("spegel.containerdMirrorAdd=false in the values of its chart; then move the files of %s back, and run ballast setup", filepath.Join(dir, hostsfile.SpegelBackup)),
				"Spegel replaces all of %s at each start, with the hosts.toml of ballast: models then arrive unconverted", dir)
		} else if list := wrote[hostsfile.Spegel]; len(list) > 0 {
			k.OK(CheckNeighbours, "Spegel mirrors %s by hosts.toml in %s; it does not share models: containerd does not have their blobs", strings.Join(list, ", "), dir)
		}
	}
}

// nvidia says whether the pods that use ballast run with NVIDIA's runtime, where a handler has it.
func (k *Checker) nvidia(ours string) {
	runtimes := k.c.runtimes()
	binary := func(handler string) string {
		b, _ := containerdversion.Setting(runtimes[handler], "options", "BinaryName").(string)
		return b
	}
	var theirs, with, without []string
	for _, name := range slices.Sorted(maps.Keys(runtimes)) {
		has := strings.HasPrefix(filepath.Base(binary(name)), nvidiaRuntime)
		switch mine := runtimes[name]["snapshotter"] == ours; {
		case mine && has:
			with = append(with, name)
		case mine:
			without = append(without, name)
		case has:
			theirs = append(theirs, name)
		}
	}
	if len(theirs) == 0 {
		if len(with) > 0 {
			k.Warn(CheckNeighbours, "ballast setup --like "+DefaultHandler, "NVIDIA's runtime is that of the handler %s, and of no other handler any more: %s", strings.Join(with, ", "), binary(with[0]))
		}
		return
	}
	list, fix := strings.Join(theirs, ", "), "ballast setup --runtime-handler ballast --like "+theirs[0]
	switch {
	case len(without) > 0:
		k.Warn(CheckNeighbours, fix, "NVIDIA's runtime is that of the handler %s, but not of %s: pods of it see GPUs by CDI only", list, strings.Join(without, ", "))
	case len(with) > 0:
		k.OK(CheckNeighbours, "NVIDIA's runtime is that of the handler %s, and of %s: %s", list, strings.Join(with, ", "), binary(with[0]))
	case k.c.snapshotter() == ours:
		k.OK(CheckNeighbours, "NVIDIA's runtime is that of the handler %s; its pods use ballast as all pods do", list)
	default:
		s, _ := runtimes[theirs[0]]["snapshotter"].(string)
		s = cmp.Or(s, k.c.snapshotter(), defaults.DefaultSnapshotter)
		k.OK(CheckNeighbours, "NVIDIA's runtime is that of the handler %s; its pods use %s. For models on GPUs: %s", list, s, fix)
	}
}

package setup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/ballast-dev/ballast/store/durable"
	"github.com/ballast-dev/ballast/store/durable/durabletest"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

var (
	sequences = flag.Int("sequences", 20, "number of random sequences of TestSequences")
	firstSeed = flag.Uint64("seed", 1, "seed of the first sequence of TestSequences")
)

// TestSequences runs random sequences of set-ups, edits by others, repairs, roll-backs and removals on generated
// nodes; runs are interrupted, fail at some step, or are killed at some call that changes the disk. After each
// operation everything that others made is as they made it, and what ballast adds is in its record; what was undone
// is as before; a run after one that has ended changes nothing. After the last removal only what others made is
// there.
func TestSequences(t *testing.T) {
	for i := range uint64(*sequences) {
		seed := *firstSeed + i
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, seed)
			defer func() {
				if t.Failed() {
					t.Logf("seed %d:\n  %s", seed, strings.Join(w.log, "\n  "))
				}
			}()
			for range 4 + w.rnd.IntN(8) {
				w.operate()
				if w.check(); t.Failed() {
					return
				}
			}
			w.finalRemoval()
		})
	}
}

// An entry is a file, directory or link of a host.
type entry struct {
	mode     fs.FileMode
	uid, gid uint32
	text     string // of a file, or the target of a link
}

// A shared file is one of others to which setup adds a part.
type shared struct {
	exists bool
	text   string   // without the part of setup
	frags  []string // that others have added while it had the part
}

// A world is a host with programs of others, and a model of what they have made.
type world struct {
	*root
	rnd    *rand.Rand
	log    []string
	distro string
	conf   string // the directory of containerd's configuration, without symbolic links
	format int
	old    bool // CRI's settings are in the tables of format 2

	theirs  map[string]entry
	parts   map[string]*shared
	edited  map[string]string // files of setup as others have edited them
	forced  bool              // setup was told to replace files of others
	base    map[string]entry  // the host before a run that has not ended; nil if others have changed it since
	options Options           // of the last set-up
	serial  int
	killed  bool // a run was killed, so its notes are lost
	keyed   bool // the daemon has run, and no removal since
}

func (w *world) say(format string, a ...any) { w.log = append(w.log, fmt.Sprintf(format, a...)) }

// chance reports true with a probability in percent.
func (w *world) chance(percent int) bool { return w.rnd.IntN(100) < percent }

func pick[T any](w *world, list []T) T { return list[w.rnd.IntN(len(list))] }

// next returns a text that nobody else has.
func (w *world) next() string {
	w.serial++
	return fmt.Sprintf("# of others: %d\n", w.serial)
}

// The generated nodes: a distribution, the version of containerd and the format of its main file.
var nodes = []struct {
	root, version string
	format        int
}{
	{"plain", "2.4", 3}, {"plain", "1.7.35", 2}, {"default", "2.3", 4}, {"docker", "2.1", 2}, {"debian", "1.7.35", 2},
	{"kubeadm", "2.2", 3}, {"kubeadm", "2.4", 3}, {"kubeadm", "2.3", 3}, {"kubeadm", "2.0", 3}, {"kind", "2.2", 3},
	{"kind", "2.4", 3}, {"eks", "2.1", 3}, {"eks", "2.2", 3}, {"eks-al2", "1.7.35", 2}, {"k3s", "2.2", 3},
	{"k3s", "2.4", 3}, {"k3s-old", "2.0", 3}, {"rke2", "2.1", 3}, {"rke2", "2.3", 3}, {"default", "2.4", 4},
}

// newWorld generates a node, which depends on the seed alone.
func newWorld(t *testing.T, seed uint64) *world {
	n := nodes[seed%uint64(len(nodes))]
	w := &world{
		root: newRoot(t, n.root), rnd: rand.New(rand.NewPCG(seed, 18)), distro: n.root, conf: "etc/containerd", format: n.format,
		theirs: map[string]entry{}, parts: map[string]*shared{}, edited: map[string]string{}, options: Options{ContainerdVersion: n.version},
	}
	w.ok(os.MkdirAll(filepath.Join(w.dir, "var/lib"), 0o755))
	w.program("usr/bin/systemctl", strings.Replace(systemctl, "verb=$1\n", "verb=$1\n[ ! -e /run/fails ] || for v in $(busybox cat /run/fails); do [ \"$verb\" != \"$v\" ] || exit 1; done\n", 1))
	w.old = strings.HasPrefix(n.version, "1.") || n.format == 2
	if name, ok := strings.CutPrefix(strings.TrimSuffix(n.root, "-old"), ""); ok && (name == "k3s" || name == "rke2") {
		w.conf = "var/lib/rancher/" + name + "/agent/etc/containerd"
	}
	if w.generated() {
		w.parts[w.conf+"/config-v3.toml.tmpl"] = &shared{}
	} else {
		w.parts[w.conf+"/config.toml"] = &shared{}
	}
	var have []string
	for name, add := range neighbours {
		have = append(have, name)
		_ = add
	}
	slices.Sort(have)
	w.rnd.Shuffle(len(have), func(i, k int) { have[i], have[k] = have[k], have[i] })
	have = have[:w.rnd.IntN(6)]
	slices.Sort(have) // so a link is made last
	for _, name := range have {
		neighbours[name](w)
	}
	w.say("%s, containerd %s, %s", n.root, n.version, strings.Join(have, ", "))
	w.theirs = w.state()
	maps.DeleteFunc(w.theirs, func(p string, _ entry) bool { return ofDaemon(p) })
	for p, s := range w.parts {
		var e entry
		if e, s.exists = w.theirs[p]; s.exists {
			s.text = e.text
		}
	}
	return w
}

// ofDaemon reports whether the daemon makes a file or directory.
func ofDaemon(p string) bool {
	return p == "var/lib/ballast" || p == "var/lib/ballast/store.db" || strings.HasPrefix(p, "var/lib/ballast/tls")
}

func (w *world) generated() bool { return strings.HasPrefix(w.conf, "var/lib/rancher") }

// dropInDir returns the directory of drop-ins for containerd. If nothing is imported from it, the main file gets the
// import.
func (w *world) dropInDir() string {
	main := w.conf + "/config.toml"
	text, err := hostAt(w.dir).Text("/" + main)
	w.ok(err)
	at, err := findImports(text)
	w.ok(err)
	if dirs := at.globDirs("/" + w.conf); len(dirs) > 0 {
		return strings.TrimPrefix(dirs[0], "/")
	}
	dir := w.conf + "/conf.d"
	if w.generated() || w.chance(20) {
		return dir // nobody reads it yet
	}
	if text == "" {
		text = fmt.Sprintf("version = %d\n", w.format)
	}
	text, err = addImport(text, "/etc/containerd/conf.d/*.toml")
	w.ok(err)
	w.write(main, text)
	return dir
}

// dropIn writes a drop-in of others in the format of the node.
func (w *world) dropIn(name, text string) {
	if w.old {
		text = strings.NewReplacer(
			"'io.containerd.cri.v1.images']\n  snapshotter", "'io.containerd.grpc.v1.cri'.containerd]\n  snapshotter",
			"io.containerd.cri.v1.images", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri").Replace(text)
	}
	w.write(w.dropInDir()+"/"+name, fmt.Sprintf("version = %d\n", w.format)+text)
}

// mode gives a file a mode and an owner.
func (w *world) mode(p string, mode fs.FileMode, uid, gid int) {
	name := filepath.Join(w.dir, p)
	w.ok(os.Chown(name, uid, gid))
	w.ok(os.Chmod(name, mode))
}

// neighbours are the programs and habits of others on generated nodes.
var neighbours = map[string]func(*world){
	"nydus": func(w *world) {
		w.dropIn("50-nydus.toml", "[proxy_plugins.nydus]\n  type = \"snapshot\"\n  address = \"/run/nydus.sock\"\n[plugins.'io.containerd.cri.v1.images']\n  snapshotter = \"nydus\"\n  disable_snapshot_annotations = false\n")
	},
	"stargz": func(w *world) {
		w.dropIn("stargz.toml", "[proxy_plugins.stargz]\n  type = \"snapshot\"\n  address = \"/run/stargz.sock\"\n  [proxy_plugins.stargz.exports]\n    root = \"/var/lib/stargz\"\n")
	},
	"soci": func(w *world) {
		w.dropIn("70-soci.toml", "[proxy_plugins.soci]\n  type = \"snapshot\"\n  address = \"/run/soci.sock\"\n[[plugins.'io.containerd.transfer.v1.local'.unpack_config]]\n  platform = \"linux/amd64\"\n  snapshotter = \"overlayfs\"\n[[plugins.'io.containerd.transfer.v1.local'.unpack_config]]\n  platform = \"linux/amd64\"\n  snapshotter = \"soci\"\n  differ = \"walking\"\n")
	},
	"differs": func(w *world) {
		w.dropIn("differs.toml", "[plugins.'io.containerd.service.v1.diff-service']\n  default = [\"erofs\", \"walking\"]\n")
	},
	"late list": func(w *world) {
		w.dropIn("zz-list.toml", "[plugins.'io.containerd.service.v1.diff-service']\n  default = [\"walking\"]\n")
	},
	"gpu": func(w *world) {
		w.dropIn("99-nvidia.toml", "[plugins.'io.containerd.cri.v1.runtime'.containerd]\n  default_runtime_name = \"nvidia\"\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]\n  runtime_type = \"io.containerd.runc.v2\"\n  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]\n    BinaryName = \"/usr/bin/nvidia-container-runtime\"\n")
	},
	"spegel": func(w *world) {
		w.write(w.conf+"/certs.d/_default/hosts.toml", "[host.\"http://127.0.0.1:30020\"]\n  capabilities = [\"pull\", \"resolve\"]\n")
		w.mode(w.conf+"/certs.d", 0o750, 65532, 65532)
	},
	"dragonfly": func(w *world) {
		for _, r := range []string{"docker.io", "ghcr.io"} {
			w.write(w.conf+"/certs.d/"+r+"/hosts.toml", "server = \"https://"+r+"\"\n[host.\"http://127.0.0.1:4001\"]\n  capabilities = [\"pull\", \"resolve\"]\n")
		}
		w.mode(w.conf+"/certs.d/ghcr.io/hosts.toml", 0o600, 1000, 1000)
	},
	"certificates": func(w *world) { w.write(w.conf+"/certs.d/ghcr.io/ca.crt", "of others\n") },
	"proxy": func(w *world) {
		w.write("run/environment", "Environment=HTTPS_PROXY=http://u:s3cret@proxy.example:3128 \"NO_PROXY=a b\"\nEnvironmentFiles=\n")
	},
	"environment": func(w *world) { w.write("etc/default/ballastd", "GOMEMLIMIT=1GiB\n") },
	"template": func(w *world) {
		if w.generated() {
			w.write(w.conf+"/config-v3.toml.tmpl", "{{ template \"base\" . }}\n\n# of the operator\n[debug]\n  level = \"info\"\n")
			w.mode(w.conf+"/config-v3.toml.tmpl", 0o640, 0, 12)
		}
	},
	"notes in the root": func(w *world) {
		w.keys()
		w.keyed = true
		w.write("var/lib/ballast/notes.txt", "of the operator\n")
	},
	"drafts": func(w *world) {
		w.write(w.conf+"/config.toml.new", "# a draft of the operator\n")
		w.write(w.conf+"/certs.d/ghcr.io/hosts.toml.new", "# a draft of the operator\n")
		w.write("usr/local/bin/ballast.new", "a build of the operator\n")
	},
	"odd modes": func(w *world) {
		w.ok(os.MkdirAll(filepath.Join(w.dir, w.conf), 0o755))
		w.mode(w.conf, 0o711, 0, 12)
		for _, n := range []string{"config.toml"} {
			if _, err := os.Stat(filepath.Join(w.dir, w.conf, n)); err == nil {
				w.mode(w.conf+"/"+n, 0o640, 33, 12)
			}
		}
	},
	"a program": func(w *world) {
		w.write("usr/local/bin/ballast", "another program of this name\n")
		w.mode("usr/local/bin/ballast", 0o750, 1000, 50)
	},
	"configuration": func(w *world) { w.write("etc/ballast/config.toml", "version = 1\n") },
	"unit":          func(w *world) { w.write("etc/systemd/system/ballastd.service", "[Service]\nExecStart=/bin/true\n") },
	"override": func(w *world) {
		w.write("etc/systemd/system/ballastd.service.d/override.conf", "[Service]\nNice=5\n")
	},
	"services": func(w *world) {
		w.write("etc/systemd/system/multi-user.target.wants/README", "of others\n")
		w.write("etc/systemd/system/sockets.target.wants/README", "of others\n")
	},
	"zz link": func(w *world) { // names are sorted, so this is the last
		if w.generated() || w.conf != "etc/containerd" {
			return
		}
		w.ok(os.MkdirAll(filepath.Join(w.dir, "etc/containerd"), 0o755))
		w.ok(os.MkdirAll(filepath.Join(w.dir, "data"), 0o755))
		w.ok(os.Rename(filepath.Join(w.dir, "etc/containerd"), filepath.Join(w.dir, "data/containerd")))
		w.ok(os.Symlink("/data/containerd", filepath.Join(w.dir, "etc/containerd")))
		w.parts["data/containerd/config.toml"] = w.parts["etc/containerd/config.toml"]
		delete(w.parts, "etc/containerd/config.toml")
		w.conf = "data/containerd"
	},
}

// state returns everything on the host, except below /run.
func (w *world) state() map[string]entry {
	w.t.Helper()
	all := map[string]entry{}
	w.ok(filepath.WalkDir(w.dir, func(p string, d fs.DirEntry, err error) error {
		name, _ := strings.CutPrefix(p, w.dir+"/")
		switch {
		case err != nil || p == w.dir:
			return err
		case name == "run":
			return fs.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		e := entry{mode: info.Mode(), uid: stat.Uid, gid: stat.Gid}
		switch {
		case info.Mode().Type() == fs.ModeSymlink:
			e.text, err = os.Readlink(p)
		case info.Mode().IsRegular() && info.Size() > 1<<16:
			e.text = fmt.Sprint(info.Size())
		case info.Mode().IsRegular():
			e.text = w.read(name)
		}
		all[name] = e
		return err
	}))
	return all
}

// difference returns the first paths that two states do not have in common.
func difference(was, is map[string]entry) string {
	var out []string
	paths := maps.Clone(was)
	maps.Copy(paths, is)
	for _, p := range slices.Sorted(maps.Keys(paths)) {
		a, inA := was[p]
		z, inZ := is[p]
		if inA != inZ || a != z {
			out = append(out, fmt.Sprintf("%s: was %v %v, is %v %v", p, inA, a, inZ, z))
		}
	}
	return strings.Join(out[:min(len(out), 8)], "\n")
}

// operate does one thing.
func (w *world) operate() {
	o := operation{Host: w.dir, Programs: w.programs, Options: Options{ContainerdVersion: w.options.ContainerdVersion}, NoRestart: true}
	switch n := w.rnd.IntN(100); {
	case n < 40, n < 70 && w.record() == nil:
		o.Kind = "setup"
		w.choose(&o)
	case n < 68:
		for range 1 + w.rnd.IntN(3) {
			w.others()
		}
		return
	case n < 72:
		w.daemon()
		return
	case n < 85:
		o.Kind = "fix"
	case n < 93:
		o.Kind, o.Open = "open", pick(w, registryNames)
	default:
		o.Kind, o.Force = "remove", w.chance(30)
	}
	w.run(o)
}

// daemon is a first start of the daemon, which makes its keys.
func (w *world) daemon() {
	if r := w.record(); r != nil && r.Run == nil && !r.Removing {
		w.say("ballastd starts")
		w.keys()
		w.keyed = true
	}
}

var registryNames = []string{"ghcr.io", "registry.ollama.ai", "docker.io", "quay.io", "_default"}

// choose chooses the options of a set-up.
func (w *world) choose(o *operation) {
	for _, r := range registryNames {
		if w.chance(30) {
			o.Options.Registries = append(o.Options.Registries, r)
		}
	}
	switch {
	case w.chance(45), w.distro == "k3s-old" && w.chance(80):
		o.Options.RuntimeHandler = "ballast"
	case w.chance(20):
		o.Options.SnapshotterOnly = true
	}
	o.Options.NoService = o.Options.RuntimeHandler != "" && w.chance(15)
	o.Force = w.chance(35)
	if w.chance(20) {
		o.Options.Settings = map[string]string{"10-tests.toml": "version = 1\n# " + fmt.Sprint(w.rnd.IntN(3)) + "\n"}
	}
	if w.chance(10) {
		o.Options.BinDir = "/opt/ballast/bin"
	}
	if w.chance(40) {
		w.version(fmt.Sprint(w.rnd.IntN(5)))
	}
	w.forced = w.forced || o.Force
}

// An operation is one call of ballast. It can be executed by another process, which is killed.
type operation struct {
	Kind      string // setup, fix, open or remove
	Options   Options
	Host      string // this and the next are no part of Options in JSON
	NoRestart bool
	Force     bool
	Programs  string
	Open      string
	Fails     int // the number of the step that fails; 0 is none
}

func (o *operation) String() string {
	s := fmt.Sprintf("%s %s force %v restart %v", o.Kind, o.Open, o.Force, !o.NoRestart)
	if c := o.Options; o.Kind == "setup" {
		s += fmt.Sprintf(" %v handler %q snapshotter-only %v no-service %v settings %v in %q", c.Registries, c.RuntimeHandler, c.SnapshotterOnly, c.NoService, c.Settings, c.BinDir)
	}
	return s
}

func (o *operation) plan(ctx context.Context) (p *Plan, err error) {
	c := o.Options
	c.Host, c.NoRestart, c.Force = o.Host, o.NoRestart, o.Force
	switch o.Kind {
	case "setup":
		p, err = New(ctx, c, o.Programs)
	case "fix":
		p, err = NewFix(ctx, c)
	case "open":
		p, err = NewOpen(ctx, c, []string{o.Open})
	default:
		p, err = NewRemoval(ctx, c)
	}
	if err == nil && o.Fails > 0 && o.Fails <= len(p.Steps) && p.Steps[0].Action != Undo {
		p.Steps = slices.Insert(p.Steps, o.Fails-1, Step{Action: Chmod, Target: "/of/nobody"})
	}
	return p, err
}

// operationEnv is the variable with the operation of a process that is to be killed.
const operationEnv = "BALLAST_TEST_OPERATION"

func TestMain(m *testing.M) {
	text := os.Getenv(operationEnv)
	if text == "" {
		m.Run()
		return
	}
	var o operation
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		err = durabletest.Child()
	}
	var p *Plan
	if err == nil {
		p, err = o.plan(context.Background())
	}
	if err == nil {
		err = p.Apply(context.Background(), func(Step) {})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// errKilled is the end of a process that was killed, or that may have been.
var errKilled = errors.New("killed")

// run makes a plan, which must change nothing, and executes it in one of the ways in which that can end.
func (w *world) run(o operation) error {
	w.t.Helper()
	before := w.state()
	if w.fail(&o); o.Fails == 0 && !o.NoRestart {
		defer func() { w.ok(os.RemoveAll(filepath.Join(w.dir, "run/fails"))) }()
	}
	p, err := o.plan(w.t.Context())
	if d := difference(before, w.state()); d != "" {
		w.t.Errorf("%v: the plan alone has changed:\n%s", &o, d)
	}
	if err != nil {
		w.say("%v: refused: %v", &o, err)
		if !errdefs.IsFailedPrecondition(err) && !errdefs.IsAlreadyExists(err) && !errdefs.IsNotFound(err) {
			w.t.Errorf("%v: %v", &o, err)
		}
		return err
	}
	had := w.record()
	if had == nil || had.Run == nil {
		w.base = before
	}
	if had == nil {
		w.killed = false
	}
	undoing := len(p.Steps) > 0 && p.Steps[0].Action == Undo
	end := w.apply(&o, p)
	w.say("%v: %s: %v; notes %q", &o, list(p.Steps), end, p.Notes)
	w.killed = w.killed || errors.Is(end, errKilled)
	rec := w.record()
	if rec == nil || rec.Run == nil { // it has ended
		undone := undoing || end != nil && !errors.Is(end, errKilled)
		if undone && w.base != nil && !p.next.Removing {
			is := w.state()
			for _, s := range []map[string]entry{is, w.base} {
				maps.DeleteFunc(s, func(p string, e entry) bool {
					return p == stateDir[1:] || strings.HasPrefix(p, keptDir[1:]) || p == stateFile[1:]+".ballast-new" || wants.MatchString(p) && (e.mode.IsDir() || !w.exists("/etc/systemd/system/"+filepath.Base(p)))
				})
			}
			if d := difference(w.base, is); d != "" {
				w.t.Errorf("%v: undone, and not as before:\n%s", &o, d)
			}
		}
		w.base = nil
	}
	w.release(o.String(), p.Notes)
	if rec == nil {
		w.keyed = w.keyed && (had == nil || !p.next.Removing)
		w.forget(o.Kind == "remove" && end == nil)
	}
	if end == nil && !undoing {
		w.idle(o)
		w.needed(o)
	}
	return end
}

// fail sometimes makes an operation restart services that do not restart, or one of its steps fail.
func (w *world) fail(o *operation) {
	switch {
	case w.chance(10):
		o.NoRestart = false
		w.write("run/fails", pick(w, []string{"restart", "daemon-reload", "enable"})+" restart\n")
	case w.chance(15):
		o.Fails = 1 + w.rnd.IntN(12)
	}
}

// apply executes a plan: in this process, with an interrupt after some step, or in a process that is killed.
func (w *world) apply(o *operation, p *Plan) error {
	switch n := w.rnd.IntN(100); {
	case n < 50 || !p.Changes() || p.next.Version == 0:
		return p.Apply(w.t.Context(), func(Step) {})
	case n < 58:
		at, k := w.rnd.IntN(len(p.Steps)), 0
		ctx, cancel := context.WithCancel(w.t.Context())
		defer cancel()
		err := p.Apply(ctx, func(Step) {
			if k++; k > at {
				cancel()
			}
		})
		if errors.Is(err, context.Canceled) {
			return errors.Join(err, errKilled)
		}
		return err
	}
	at := 1 + w.rnd.IntN(30+6*len(p.Steps))
	calls, out := w.kill(*o, at)
	w.say("killed before call %d of %d: %s", at, calls, out)
	return errKilled // it may have ended before
}

// idle checks that a second run after one that has ended changes nothing.
func (w *world) idle(o operation) {
	if o.Kind == "remove" {
		return
	}
	o.Fails = 0
	p, err := o.plan(w.t.Context())
	if o.Kind == "open" && errdefs.IsFailedPrecondition(err) { // the file that others have edited is theirs now
		return
	}
	if err != nil {
		w.t.Errorf("%v, again: %v", &o, err)
		return
	}
	if slices.ContainsFunc(p.Steps, func(s Step) bool { return s.Action != Start && s.Action != Wait }) {
		w.t.Errorf("%v, again: %s", &o, list(p.Steps))
	}
}

// needed checks that after a run that has ended only versions of others are kept.
func (w *world) needed(o operation) {
	all, err := hostAt(w.dir).versions()
	w.ok(err)
	for p, list := range all {
		for _, d := range list {
			if r := w.record(); r != nil && !r.Kept.has(p, d) {
				w.t.Errorf("%v: %s is kept", &o, kept(p, d))
			}
		}
	}
}

func list(steps []Step) string {
	var out []string
	for _, s := range steps {
		out = append(out, string(s.Action)+" "+s.Target)
	}
	return strings.Join(out, ", ")
}

// kill executes an operation in a process that is killed before its call number at that changes the disk, and returns
// the number of calls, and the output.
func (r *root) kill(o operation, at int) (calls int, output string) {
	r.t.Helper()
	text, err := json.Marshal(o)
	r.ok(err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), operationEnv+"="+string(text))
	var out bytes.Buffer
	cmd.Stderr = &out
	calls, _ = durabletest.Kill(r.t, cmd, at) // operations fail, too
	return calls, out.String()
}

func (w *world) exists(p string) bool { return hostAt(w.dir).Exists(p) }

func (w *world) record() *record {
	r, err := hostAt(w.dir).readRecord()
	w.ok(err)
	return r
}

// real returns a path of the host as its path in states.
func (w *world) real(p string) string {
	name, err := hostAt(w.dir).Path(p)
	w.ok(err)
	return strings.TrimPrefix(name, w.dir+"/")
}

// ours returns the files of setup on the host that others can edit.
func (w *world) ours() []string {
	var out []string
	r := w.record()
	if r == nil {
		return nil
	}
	for _, p := range slices.Sorted(maps.Keys(r.Files)) {
		if _, ok := w.parts[w.real(p)]; !ok && w.exists(p) {
			out = append(out, w.real(p))
		}
	}
	return out
}

// others changes something as others do.
func (w *world) others() {
	if rec := w.record(); rec != nil && rec.Run != nil {
		w.base = nil
	}
	files := slices.DeleteFunc(slices.Sorted(maps.Keys(w.theirs)), func(p string) bool {
		e := w.theirs[p]
		_, part := w.parts[p]
		return part || !e.mode.IsRegular() || strings.HasPrefix(p, "bin/") || strings.HasPrefix(p, "usr/bin/") || w.state()[p] != e || filepath.Ext(p) == ".env" || strings.HasPrefix(p, stateDir[1:]) || strings.HasSuffix(p, "config.toml")
	})
	switch n := w.rnd.IntN(100); {
	case n < 25:
		w.add()
	case n < 40 && len(files) > 0:
		p := pick(w, files)
		w.say("others edit %s", p)
		w.write(p, w.read(p)+w.next())
		w.know(p)
	case n < 50 && len(files) > 0:
		p := pick(w, files)
		w.say("others change the mode of %s", p)
		w.mode(p, pick(w, []fs.FileMode{0o600, 0o640, 0o644, 0o755}), w.rnd.IntN(3), w.rnd.IntN(3))
		w.know(p)
	case n < 58 && len(files) > 0 && (w.record() == nil || w.record().Run == nil):
		p := pick(w, files)
		w.say("others remove %s", p)
		w.ok(os.Remove(filepath.Join(w.dir, p)))
		delete(w.theirs, p)
	case n < 75:
		w.part()
	default:
		if ours := w.ours(); len(ours) > 0 {
			p := pick(w, ours)
			if _, ok := w.theirs[p]; ok && w.read(p) == w.theirs[p].text {
				return
			}
			if n < 82 {
				w.say("others remove %s of setup", p)
				w.ok(os.Remove(filepath.Join(w.dir, p)))
				delete(w.edited, p)
				return
			}
			w.say("others edit %s of setup", p)
			w.write(p, w.read(p)+w.next())
			w.edited[p] = w.read(p)
		}
	}
}

// know takes a file and the directories above it into the model.
func (w *world) know(p string) {
	all := w.state()
	w.theirs[p] = all[p]
	ours := []string{"var/lib/ballast"}
	if r := w.record(); r != nil {
		for _, d := range r.Dirs {
			ours = append(ours, w.real(d))
		}
	}
	for d := filepath.Dir(p); d != "."; d = filepath.Dir(d) {
		if _, ok := w.theirs[d]; !ok && !slices.Contains(ours, d) {
			w.theirs[d] = all[d]
		}
	}
}

// add adds a file of others.
func (w *world) add() {
	p := pick(w, []string{
		w.conf + "/certs.d/quay.io/hosts.toml", w.conf + "/certs.d/registry.ollama.ai/hosts.toml", w.conf + "/certs.d/_default/hosts.toml", w.conf + "/certs.d/ghcr.io/key.pem",
		w.conf + "/conf.d/notes", w.conf + "/config.toml.bak", "etc/ballast/notes", "etc/ballast/conf.d/50-own.toml", "etc/systemd/system/other.service", "etc/systemd/system/ballastd.socket",
		"etc/systemd/system/multi-user.target.wants/other", "usr/local/bin/ballastd", "opt/ballast/bin/ballast", "opt/ballast/notes", "var/lib/ballast/notes",
	})
	if _, err := os.Lstat(filepath.Join(w.dir, p)); err == nil || filepath.Dir(p) == "var/lib/ballast" && !w.exists("/var/lib/ballast/store.db") {
		return
	}
	w.say("others add %s", p)
	text := w.next()
	if strings.HasSuffix(p, ".toml") && strings.HasPrefix(p, "etc/ballast") {
		text = "version = 1\n" + text
	}
	w.write(p, text)
	w.mode(p, pick(w, []fs.FileMode{0o600, 0o644}), w.rnd.IntN(2), 0)
	w.know(p)
}

// part changes the file to which setup adds a part.
func (w *world) part() {
	for p, s := range w.parts {
		text, err := hostAt(w.dir).Text("/" + p)
		w.ok(err)
		if text == "" || w.chance(30) {
			if !s.exists || w.generated() {
				return
			}
			w.say("others write %s anew", p) // as nodeadm does at each boot
			w.write(p, s.text)
			s.frags = nil
			continue
		}
		if s.exists && w.chance(30) {
			w.say("others change the mode of %s", p)
			w.mode(p, pick(w, []fs.FileMode{0o600, 0o640, 0o644}), w.rnd.IntN(3), w.rnd.IntN(3))
			e, now := w.theirs[p], w.state()[p]
			e.mode, e.uid, e.gid = now.mode, now.uid, now.gid
			w.theirs[p] = e
			continue
		}
		frag := w.next()
		w.say("others add to %s", p)
		w.write(p, text+frag)
		s.text += frag
		s.frags = append(s.frags, frag)
		if s.exists {
			e := w.theirs[p]
			e.text = s.text
			w.theirs[p] = e
		}
	}
}

// check compares the host with the model.
func (w *world) check() {
	w.t.Helper()
	all, r := w.state(), w.record()
	known := map[string]bool{}
	if r != nil {
		for p := range r.Files {
			known[w.real(p)], known[w.real(p+edited)] = true, true
		}
		for _, p := range r.Dirs {
			known[w.real(p)] = true
		}
		if b := r.Run; b != nil {
			for p := range b.Files {
				known[w.real(p)] = true
			}
			for _, p := range b.Dirs {
				known[w.real(p)] = true
			}
		}
	}
	for p := range w.edited {
		for q := p; q != "."; q = filepath.Dir(q) {
			known[q] = true
		}
		known[p+edited] = true
	}
	for _, p := range slices.Sorted(maps.Keys(w.theirs)) {
		e, got := w.theirs[p], all[p]
		s, part := w.parts[p]
		switch {
		case part:
			if why := s.differs(got.text); why != "" {
				w.t.Errorf("%s: %s\nis   %q\nwant %q", p, why, got.text, s.text)
			}
			if got.mode != e.mode || got.uid != e.uid || got.gid != e.gid {
				w.t.Errorf("%s: mode %v of %d:%d, want %v of %d:%d", p, got.mode, got.uid, got.gid, e.mode, e.uid, e.gid)
			}
		case strings.HasPrefix(p, keptDir[1:]+"/") && all[w.real(keptPath(p))].text == e.text: // in its place
		case got == e, wants.MatchString(p) && e.mode.IsDir(): // systemctl removes it when it is empty
		case w.replaceable(p) && e.mode.IsRegular() && w.keptAt(all, p, e.text):
		default:
			w.t.Errorf("%s of others: was %v, is %v", p, e, got)
		}
	}
	for p, text := range w.edited {
		if all[p].text != text && all[p+edited].text != text && !w.keptAt(all, p, text) {
			w.t.Errorf("%s, as others have edited it, is lost: %q", p, text)
		}
	}
	for _, p := range slices.Sorted(maps.Keys(all)) {
		_, theirs := w.theirs[p]
		_, part := w.parts[p]
		if unfinished, ok := strings.CutSuffix(p, ".ballast-new"); ok && r != nil && r.Run != nil && known[unfinished] {
			continue
		}
		if theirs || part || known[p] || all[p].mode.IsDir() && w.holds(p) || p == "var/lib/ballast-setup" || strings.HasPrefix(p, "var/lib/ballast-setup/") || ofDaemon(p) || wants.MatchString(p) {
			continue
		}
		w.t.Errorf("%s is not of others, and not in the record", p)
	}
}

// wants matches the links of units, and their directories.
var wants = regexp.MustCompile(`^etc/systemd/system/[a-z.-]+\.wants(/ballastd.*)?$`)

// keptAt reports whether a text is among the kept versions of a path.
func (w *world) keptAt(all map[string]entry, p, text string) bool {
	return all[kept("/"+w.hostPath(p), digest.FromString(text))[1:]].text == text
}

// keptPath returns the path of which a path of a state is a kept version, or a directory of such.
func keptPath(p string) string {
	p, _, _ = strings.Cut(p[len(keptDir)-1:], "@")
	return p
}

// hostPath returns the path of the host by which setup knows a path of a state.
func (w *world) hostPath(p string) string {
	if rest, ok := strings.CutPrefix(p, "data/containerd"); ok {
		return "etc/containerd" + rest
	}
	return p
}

// replaceable reports whether setup may keep a file of others elsewhere: by force, or a program.
func (w *world) replaceable(p string) bool {
	return w.forced || slices.Contains(programs, filepath.Base(p))
}

// importOfSetup matches the import that setup adds: alone, after others, or in an empty list.
var importOfSetup = []*regexp.Regexp{
	regexp.MustCompile(`imports = \["/etc/containerd/con[a-z]+\.d/\*\.toml"\]\n`),
	regexp.MustCompile(`, "/etc/containerd/con[a-z]+\.d/\*\.toml"`),
	regexp.MustCompile(`"/etc/containerd/con[a-z]+\.d/\*\.toml"`),
	regexp.MustCompile(`imports = \[\]\n`), // the list was not there; others have edited the file since
	regexp.MustCompile(`(?s)\n*` + regexp.QuoteMeta(blockBegin) + ".*" + regexp.QuoteMeta(blockEnd) + "\n"),
}

// differs returns why a shared file is not as others have made it, besides the part of setup.
func (s *shared) differs(got string) string {
	trim := func(s string) string { return strings.TrimRight(strings.ReplaceAll(s, "\n\n", "\n"), "\n") }
	if !s.exists { // setup has made it
		if want := strings.Join(s.frags, ""); !strings.HasSuffix(got, want) {
			return "the additions of others are lost"
		}
		return ""
	}
	if got == s.text {
		return ""
	}
	for _, re := range importOfSetup {
		if trim(re.ReplaceAllString(got, "")) == trim(s.text) || trim(re.ReplaceAllString(got, "\n")) == trim(s.text) {
			return ""
		}
	}
	return "it is not as others have made it, besides the part of setup"
}

// release checks that files that are not in the record any more, because others have edited them, are named. They
// belong to others now.
func (w *world) release(what string, notes []string) {
	all, text, r := w.state(), strings.Join(notes, "\n"), w.record()
	for _, p := range slices.Sorted(maps.Keys(w.edited)) {
		if r != nil {
			if _, ok := r.Files["/"+w.hostPath(p)]; ok || r.Run != nil {
				continue
			}
		}
		for _, q := range []string{p, p + edited} {
			if _, ok := w.edited[p]; !ok || all[q].text != w.edited[p] {
				continue
			}
			if !w.killed && !strings.Contains(text, "/"+w.hostPath(q)) {
				w.t.Errorf("%s leaves %s, which others have edited, and does not name it: %q", what, q, notes)
			}
			delete(w.edited, p)
			w.know(q)
		}
	}
}

// forget takes what a removal that has ended leaves into the model.
func (w *world) forget(removed bool) {
	all := w.state()
	for p, s := range w.parts { // with the additions of others it is theirs
		got, ok := all[p]
		if !s.exists && ok && len(s.frags) > 0 {
			s.exists, s.text = true, got.text
			w.know(p)
		} else if s.exists && ok && len(s.frags) > 0 {
			s.text = got.text
			w.know(p)
		}
		s.frags = nil
	}
	for p, e := range all { // so are files of others that could not be put back, with those of setup in their place
		if removed && strings.HasPrefix(p, keptDir[1:]+"/") && e.mode.IsRegular() && !durable.Unfinished(p) {
			w.know(p)
		}
	}
	for p, e := range w.theirs {
		if strings.HasPrefix(p, "var/lib/ballast-setup") {
			continue
		}
		if all[p] != e {
			if w.keptAt(w.theirs, p, e.text) {
				delete(w.theirs, p)
				if _, ok := all[p]; ok {
					w.know(p)
				}
			}
		}
	}
}

// holds reports whether others have files in a directory.
func (w *world) holds(dir string) bool {
	for p := range w.theirs {
		if strings.HasPrefix(p, dir+"/") {
			return true
		}
	}
	return false
}

// finalRemoval removes ballast, if necessary more than once: only what others made is left.
func (w *world) finalRemoval() {
	done := false
	for k := 0; k < 60 && !done; k++ { // a removal can fail or be killed, too
		done = w.run(operation{Kind: "remove", Host: w.dir, NoRestart: true, Force: k%2 == 1}) == nil && w.record() == nil
		if w.check(); w.t.Failed() {
			return
		}
	}
	if !done {
		w.t.Fatal("ballast cannot be removed")
	}
	for p, e := range w.state() {
		want, ok := w.theirs[p]
		_, part := w.parts[p]
		switch {
		case ok && (part || want == e):
		case ok && w.replaceable(p) && e.mode.IsRegular(): // checked: it is kept
		case wants.MatchString(p) && e.mode.IsDir(): // of a unit that others have removed
		case ofDaemon(p) && w.keyed: // a set-up that was undone after the daemon has run
		case e.mode.IsDir() && w.holds(p): // a directory of setup, which others use
		case part && w.holds(filepath.Dir(p)+"/conf.d"): // the import that others use
		default:
			w.t.Errorf("left: %s %v, want %v", p, e, want)
		}
	}
}

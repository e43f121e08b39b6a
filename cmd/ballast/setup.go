package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/installer/node"
	"github.com/ballast-dev/ballast/cmd/internal/installer/setup"
	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
)

// setupFlags are the flags of "setup".
type setupFlags struct {
	setup.Options
	open           []string
	settings       string
	remove, dryRun bool
}

func (a *app) setupCommand() *cobra.Command {
	var o setupFlags
	c := &cobra.Command{
		Use:   "setup",
		Short: "install, upgrade or remove ballast on this node",
		Long: `Install this version of ballast on a node, or upgrade the installed one: the programs, the unit of ballastd,
the drop-in for containerd and its import, and the hosts.toml files of registries that have models. What is
right stays as it is, so a second run changes nothing. containerd is restarted only if its configuration has
changed, ballastd only if it has changed itself; containers continue.

A crash at any point leaves a node that can pull ordinary images, and another run completes the setup. Files
that were replaced are kept in /var/lib/ballast-setup, for --remove. setup remembers its flags:
a flag that is not given has its value from the last run, but for --no-restart and --force.

--registry closes a registry: while ballastd is stopped, its tags cannot be pulled. setup refuses to close
the registry of an image that the node needs to recover: the sandbox image in containerd's configuration, and
those in --image, unless the image is named by digest, or is on the node and pinned. --open asks a registry
directly again; it needs neither ballastd nor a restart.

--docker is for Docker Engine 29 and later: ballast is then the storage driver of all its images and containers,
and those of the former one are not listed until ballast is removed.

With --host, the node is another root directory, as in a pod that mounts that of its machine; systemctl runs
in that root. Without systemd, --no-service leaves it to you to run ballastd, for example in a pod.`,
		Example: "  ballast setup --registry registry.ollama.ai --dry-run\n  ballast setup --host /host --no-service --runtime-handler ballast --image registry.example/ballast:1\n  ballast setup --remove",
		Args:    noArgs(""),
	}
	out := outputFlag(c)
	f := c.Flags()
	f.StringVar(&o.Host, "host", "/", "root of the node's file system")
	f.StringVar(&o.Distro, "distro", node.Auto, "distribution of the node: "+strings.Join(node.Distros(), ", "))
	f.StringSliceVar(&o.Registries, "registry", nil, "close registries, instead of those of the last run: their tags go through ballast. _default: all others; \"\": none")
	f.StringVar(&o.RuntimeHandler, "runtime-handler", "", "use ballast only for pods of this runtime handler (default: for all pods)")
	f.StringSliceVar(&o.Like, "like", nil, likeUsage)
	f.BoolVar(&o.SnapshotterOnly, "snapshotter-only", false, "configure nothing for Kubernetes")
	f.BoolVar(&o.Docker, "docker", false, "make ballast the storage driver of Docker Engine, which is restarted (the first time with --snapshotter-only, unless --runtime-handler is given)")
	f.StringSliceVar(&o.Images, "image", nil, "images that the node needs to recover, such as those of ballastd's pod and of the network")
	f.StringVar(&o.BinDir, "bin-dir", setup.DefaultBinDir, "directory to copy the programs to; those of a package stay where they are")
	f.StringVar(&o.settings, "settings", "", "directory with *.toml files to copy to /etc/ballast/conf.d of the node")
	f.StringSliceVar(&o.Env, "env", nil, "variables of the environment of this command that ballastd gets, such as HF_TOKEN; \"\": none")
	f.StringVar(&o.ContainerdVersion, "containerd-version", "", "version of the node's containerd, such as 2.3 (default: ask containerd)")
	f.BoolVar(&o.NoService, "no-service", false, "install no unit: ballastd runs elsewhere")
	f.BoolVar(&o.NoRestart, "no-restart", false, "restart nothing, and print what to restart")
	f.BoolVar(&o.Force, "force", false, "replace files and settings of others, which are kept; close a registry that the node needs; remove while containers use ballast")
	f.BoolVar(&o.dryRun, "dry-run", false, "show what would be done")
	f.BoolVar(&o.remove, "remove", false, "uninstall ballast, with all models; other images stay")
	f.BoolVar(&o.WithDaemon, "with-daemon", false, "with --remove, where ballastd was in a pod: run the ballastd beside this program until the images are removed")
	f.StringSliceVar(&o.open, "open", nil, "ask these registries directly again, without ballast")
	flagValues(c, "distro", node.Distros()...)
	c.RunE = func(cmd *cobra.Command, _ []string) error { return a.setup(cmd, &o, *out) }
	return c
}

// setup makes a plan and executes it.
func (a *app) setup(cmd *cobra.Command, o *setupFlags, out output) error {
	if os.Geteuid() != 0 && !o.dryRun && o.Distro != node.Talos {
		return fmt.Errorf("setup changes the system; run it as root: %w", errdefs.ErrPermissionDenied)
	}
	given := cmd.Flags().Changed
	switch {
	case o.WithDaemon && !o.remove:
		return usage("--with-daemon is for --remove")
	case o.WithDaemon && o.dryRun:
		return usage("--with-daemon runs ballastd, and --dry-run runs nothing; without --with-daemon it shows the rest of the plan")
	case o.remove && (given("registry") || given("open")):
		return usage("--remove removes ballast from all registries; --open REGISTRY from one")
	case given("registry") && given("open"):
		return usage("--registry closes a registry and --open opens one: run setup for each")
	}
	return a.locked(cmd.Context(), o.Host, os.Geteuid() == 0, func() error {
		if o.WithDaemon {
			if err := o.recall(cmd); err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			return a.removeWithDaemon(cmd.Context(), o.Options, filepath.Join(filepath.Dir(self), "ballastd"), out)
		}
		plan, err := o.plan(cmd.Context(), cmd)
		if err != nil {
			return asUsage(err)
		}
		return a.applyPlan(cmd.Context(), plan, o.dryRun, out)
	})
}

// locked calls f while no other set-up of a host runs; who changes nothing does not wait for others.
func (a *app) locked(ctx context.Context, root string, changes bool, f func() error) error {
	if !changes {
		return f()
	}
	release, err := setup.Lock(ctx, root, func() { a.note("another set-up of this node runs: waiting until it ends") })
	if err != nil {
		return err
	}
	return errors.Join(f(), release())
}

// plan returns the plan.
func (o *setupFlags) plan(ctx context.Context, cmd *cobra.Command) (*setup.Plan, error) {
	if err := o.recall(cmd); err != nil {
		return nil, err
	}
	switch {
	case o.remove:
		return setup.NewRemoval(ctx, o.Options)
	case len(o.open) > 0:
		return setup.NewOpen(ctx, o.Options, o.open)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return nil, err
	}
	programs := filepath.Dir(self)
	if err := o.Place(programs, cmd.Flags().Changed("bin-dir")); err != nil {
		return nil, err
	}
	return setup.New(ctx, o.Options, programs)
}

// recall sets flags that are not given to the choices of the last run that those that are given do not end.
func (o *setupFlags) recall(cmd *cobra.Command) error {
	last, err := setup.Recorded(o.Host)
	if err != nil {
		return err
	}
	given := cmd.Flags().Changed
	for flag, keep := range map[string]func(){
		"distro":             func() { o.Distro = cmp.Or(last.Distro, o.Distro) },
		"registry":           func() { o.Registries = last.Registries },
		"runtime-handler":    func() { o.RuntimeHandler = last.RuntimeHandler },
		"like":               func() { o.Like = last.Like },
		"snapshotter-only":   func() { o.SnapshotterOnly = last.SnapshotterOnly },
		"docker":             func() { o.Docker = last.Docker },
		"containerd-version": func() { o.ContainerdVersion = last.ContainerdVersion },
		"image":              func() { o.Images = last.Images },
		"settings":           func() { o.Settings = last.Settings },
		"env":                func() { o.Env = last.Env },
		"bin-dir":            func() { o.BinDir, o.Packaged = cmp.Or(last.BinDir, o.BinDir), last.Packaged },
		"no-service":         func() { o.NoService = last.NoService },
	} {
		if !given(flag) {
			keep()
		}
	}
	switch handler, only := given("runtime-handler"), given("snapshotter-only"); {
	case handler && !only: // each of the two ends the other one of the last run
		o.SnapshotterOnly = false
	case only && !handler && o.SnapshotterOnly:
		o.RuntimeHandler = ""
	case !handler && !only && o.Docker && setup.Fresh(o.Host):
		o.SnapshotterOnly = true
	}
	if !given("like") && o.RuntimeHandler == "" {
		o.Like = nil
	}
	if given("env") {
		if o.Values, err = config.Variables(o.Env); err != nil {
			return err
		}
	}
	if given("settings") {
		o.Settings, err = setup.ReadSettings(o.settings)
	}
	return err
}

// applyPlan prints a plan, and executes it unless dryRun is set.
func (a *app) applyPlan(ctx context.Context, plan *setup.Plan, dryRun bool, out output) error {
	var err error
	if say := a.stepPrinter(out); dryRun {
		for _, s := range plan.Steps {
			say(s)
		}
	} else {
		err = plan.Apply(ctx, say)
	}
	return a.printPlan(plan, dryRun, out, err)
}

// stepPrinter returns what prints a step of a plan.
func (a *app) stepPrinter(out output) func(setup.Step) {
	return func(s setup.Step) {
		if out != outJSON && !a.quiet {
			fmt.Fprintf(a.stdout, "%-8s %s: %s\n", s.Action, printable(s.Target), printable(s.Why))
		}
	}
}

// printPlan prints what is left to say of a plan whose steps were printed, and returns the error of its execution.
func (a *app) printPlan(plan *setup.Plan, dryRun bool, out output, err error) error {
	if out == outJSON && err == nil {
		plan.Steps = append([]setup.Step{}, plan.Steps...) // [] and not null
		return a.printJSON(plan)
	}
	for _, n := range plan.Notes {
		a.note("%s", n)
	}
	if err != nil {
		return err
	}
	fmt.Fprint(a.stdout, plan.Manifest)
	switch {
	case plan.Manifest != "":
	case !plan.Changes():
		fmt.Fprintln(a.stderr, "nothing to change")
	case dryRun:
		fmt.Fprintln(a.stderr, "dry run: nothing was changed")
	}
	return nil
}

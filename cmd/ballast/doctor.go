package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/doctor"
	"github.com/ballast-dev/ballast/cmd/internal/installer/node"
	"github.com/ballast-dev/ballast/cmd/internal/installer/setup"
	"github.com/ballast-dev/ballast/snapshotter"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/spf13/cobra"
)

func (a *app) doctorCommand() *cobra.Command {
	var containerd, version string
	var hostsDirs []string
	var fix, dryRun, unfixed bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "check this node and print how to fix each problem",
		Long:  "Check the daemon, the kernel, containerd's configuration and hosts.toml files, and print the command or\nsetting that fixes each problem. The exit code is 1 if a check fails.\n\n--fix first fixes what needs no decision: files of \"ballast setup\" that are missing or from an older version,\nthe import of the drop-in, a unit that is not enabled, a daemon that is not running, a containerd that has\nnot read its configuration, permissions that are too open. It does not change files that were edited since,\nthe programs, or which registries are closed.",
		Args:  noArgs(""),
	}
	out := outputFlag(c)
	c.Flags().StringVar(&containerd, "containerd-config", "", "configuration file of containerd (default: that of this node)")
	c.Flags().StringVar(&version, "containerd-version", "", "version of containerd, such as 2.3 (default: that of this node)")
	c.Flags().StringSliceVar(&hostsDirs, "hosts-dir", nil, "more directories of hosts.toml files, as used with ctr and nerdctl")
	c.Flags().BoolVar(&fix, "fix", false, "fix what needs no decision, then check")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "with --fix: show what would be fixed")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if dryRun && !fix {
			return usage("--dry-run needs --fix")
		}
		if fix {
			err := a.fix(cmd.Context(), dryRun, *out)
			if dryRun {
				return err
			}
			if err != nil { // the findings are still printed
				a.complain(err)
				unfixed = true
			}
		}
		cfg, unread := a.load()
		if unread != nil {
			cfg = config.Default()
		}
		cl := wire.NewClient(config.AdminAddress(a.address, cfg))
		defer cl.Close()
		if err := log.SetLevel("panic"); err != nil { // the findings have what containerd's readers log
			return err
		}
		view, err := node.Look(cmd.Context(), node.Options{Config: cfg, Main: containerd, Version: version})
		if view == nil || errdefs.IsInvalidArgument(err) {
			return asUsage(err)
		}
		d := &doctor.Doctor{
			Config: cfg, ConfigError: unread, Client: cl, Version: wire.ThisVersion().Version,
			Node: view, NodeError: err, HostsDirs: hostsDirs, Fresh: setup.Fresh("/"),
			Touch:      touch,
			Probe:      func(dir string) error { return snapshotter.Probe(dir, dir).Stubs },
			ProbeUsers: snapshotter.ProbeUsers,
		}
		findings := d.Run(cmd.Context())
		if err = cmd.Context().Err(); err != nil {
			return err
		}
		if *out == outJSON {
			err = a.printJSON(findings)
		} else {
			a.findings(findings)
		}
		if err == nil && (unfixed || len(findings.Failed()) > 0) {
			err = errSilent
		}
		return err
	}
	return c
}

// touch writes something to the disk of a directory, in another process. The error has the text of that of the disk.
func touch(dir string) error {
	said, err := exec.Command("/proc/self/exe", "node", "touch", dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(said))
	}
	return nil
}

// fix repairs what is safe to repair. If the findings are JSON, messages about repairs go to
// stderr.
func (a *app) fix(ctx context.Context, dryRun bool, out output) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("--fix changes the system; run it as root: %w", errdefs.ErrPermissionDenied)
	}
	return a.locked(ctx, "/", true, func() error {
		plan, err := setup.NewFix(ctx, setup.Options{})
		if err != nil {
			return err
		}
		to := *a
		if !dryRun && out == outJSON {
			to.stdout, out = a.stderr, outTable
		}
		return to.applyPlan(ctx, plan, dryRun, out)
	})
}

func (a *app) findings(fs node.Findings) {
	for _, f := range fs {
		if a.quiet && f.Status == node.OK {
			continue
		}
		fmt.Fprintf(a.stdout, "%-4s  %s: %s\n", strings.ToUpper(string(f.Status)), f.Check, printable(f.Message))
		if f.Fix != "" {
			fmt.Fprintf(a.stdout, "      fix: %s\n", printable(f.Fix))
		}
	}
}

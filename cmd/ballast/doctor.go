package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/cmd/internal/containerdversion"
	"github.com/ballast-dev/ballast/cmd/internal/doctor"
	"github.com/ballast-dev/ballast/cmd/internal/setup"
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
		Short: "find out why this node would not show models, and how to mend it",
		Long:  "Look at the daemon, the kernel, containerd's configuration and hosts.toml files, and say what is\nwrong and the line that mends it. Ends with 1 if something fails.\n\n--fix first mends what is safe to mend: files of \"ballast setup\" that are missing or of an older version, the\nimport of the drop-in, a unit that is not enabled, a daemon that does not run, containerd that has not read its\nconfiguration, permissions that let others in. What somebody has changed stays, and so do programs and which\nregistries are closed.",
		Args:  cobra.NoArgs,
	}
	out := outputFlag(c)
	c.Flags().StringVar(&containerd, "containerd-config", "", "configuration file of containerd (default: that of this node)")
	c.Flags().StringVar(&version, "containerd-version", "", "version of containerd, such as 2.3 (default: that of this node)")
	c.Flags().StringSliceVar(&hostsDirs, "hosts-dir", nil, "more directories of hosts.toml files, as given to ctr and nerdctl")
	c.Flags().BoolVar(&fix, "fix", false, "mend what is safe to mend before looking")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "with --fix: only say what would be mended")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if dryRun && !fix {
			return usage("--dry-run is for --fix")
		}
		if containerd == "" {
			containerd = setup.ContainerdConfig("/")
		}
		if fix {
			err := a.fix(cmd.Context(), dryRun, *out)
			if dryRun {
				return err
			}
			if err != nil { // what is wrong is to be seen all the more
				a.complain(err)
				unfixed = true
			}
		}
		cfg, unread := a.load()
		if unread != nil {
			cfg = config.Default()
		}
		cl := admin.NewClient(config.AdminAddress(a.address, cfg))
		defer cl.Close()
		d := &doctor.Doctor{
			Config: cfg, ConfigError: unread, Client: cl, Version: admin.ThisVersion().Version,
			ContainerdConfig: containerd, HostsDirs: hostsDirs,
			ContainerdVersion: func(ctx context.Context) (containerdversion.Version, error) {
				return containerdversion.Find(ctx, version, cfg.Containerd.Address)
			},
			Probe:      func(dir string) error { return snapshotter.Probe(dir, dir).Stubs },
			ProbeUsers: snapshotter.ProbeUsers,
		}
		if err := log.SetLevel("panic"); err != nil { // what containerd's readers log, the findings say
			return err
		}
		if _, err := containerdversion.Parse(version); version != "" && err != nil {
			return asUsage(err)
		}
		findings := d.Run(cmd.Context())
		var err error
		if *out == outJSON {
			err = a.printJSON(findings)
		} else {
			a.findings(findings)
		}
		if err == nil && (unfixed || doctor.Failed(findings)) {
			err = errSilent
		}
		return err
	}
	return c
}

// fix mends what is safe to mend. What it did goes where notes go if the findings are for a program.
func (a *app) fix(ctx context.Context, dryRun bool, out output) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("--fix changes the system: run it as root: %w", errdefs.ErrPermissionDenied)
	}
	return locked(ctx, "/", func() error {
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

func (a *app) findings(fs []doctor.Finding) {
	for _, f := range fs {
		if a.quiet && f.Status == doctor.OK {
			continue
		}
		fmt.Fprintf(a.stdout, "%-4s  %s: %s\n", strings.ToUpper(string(f.Status)), f.Check, printable(f.Message))
		if f.Mend != "" {
			fmt.Fprintf(a.stdout, "      mend: %s\n", printable(f.Mend))
		}
	}
}

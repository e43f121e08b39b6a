package main

import (
	"fmt"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/cmd/internal/doctor"
	"github.com/ballast-dev/ballast/snapshotter"
	"github.com/containerd/log"
	"github.com/spf13/cobra"
)

func (a *app) doctorCommand() *cobra.Command {
	var containerd string
	var hostsDirs []string
	c := &cobra.Command{
		Use:   "doctor",
		Short: "find out why this node would not show models, and how to mend it",
		Long:  "Look at the daemon, the kernel, containerd's configuration and hosts.toml files, and say what is\nwrong and the line that mends it. Ends with 1 if something fails.",
		Args:  cobra.NoArgs,
	}
	out := outputFlag(c)
	c.Flags().StringVar(&containerd, "containerd-config", "/etc/containerd/config.toml", "configuration file of containerd")
	c.Flags().StringSliceVar(&hostsDirs, "hosts-dir", nil, "more directories of hosts.toml files, as given to ctr and nerdctl")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, unread := a.load()
		if unread != nil {
			cfg = config.Default()
		}
		cl := admin.NewClient(config.AdminAddress(a.address, cfg))
		defer cl.Close()
		d := &doctor.Doctor{
			Config: cfg, ConfigError: unread, Client: cl, Version: admin.ThisVersion().Version,
			ContainerdConfig: containerd, HostsDirs: hostsDirs,
			Probe: func(dir string) error { return snapshotter.Probe(dir, dir).Stubs },
		}
		if err := log.SetLevel("panic"); err != nil { // what containerd's readers log, the findings say
			return err
		}
		findings := d.Run(cmd.Context())
		var err error
		if *out == outJSON {
			err = a.printJSON(findings)
		} else {
			a.findings(findings)
		}
		if err == nil && doctor.Failed(findings) {
			err = errSilent
		}
		return err
	}
	return c
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

package main

import (
	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/cmd/internal/containerdversion"
	"github.com/ballast-dev/ballast/cmd/internal/setup"
	"github.com/ballast-dev/ballast/cmd/internal/snippet"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/spf13/cobra"
)

// defaultHostsDir is where CRI looks for hosts.toml files when we have set it up.
const defaultHostsDir = snippet.DefaultHostsDir

func (a *app) configCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "print configuration for containerd",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("unknown command %q for \"ballast config\"", args[0])
			}
			return cmd.Help()
		},
	}
	c.AddCommand(a.configContainerdCommand(), a.configHostsCommand(), a.configRotateCommand())
	return c
}

func (a *app) configContainerdCommand() *cobra.Command {
	var s snippet.Containerd
	var version, main string
	c := &cobra.Command{
		Use:   "containerd",
		Short: "print the drop-in for containerd's configuration",
		Long: `Print the drop-in for containerd's configuration. What it looks like depends on the version of the containerd that
runs (containerd.address), or of the program that is installed; --containerd-version says otherwise. It has the format of
the main configuration file where these must not differ.

By default all pods use ballast; ordinary images are handled as overlayfs does. With
--runtime-handler only pods of a runtimeClass with that handler do. With --snapshotter-only
nothing is set for Kubernetes: ctr and nerdctl take "--snapshotter ballast".`,
		Example: "  ballast config containerd > /etc/containerd/conf.d/ballast.toml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.load()
			if err != nil {
				return err
			}
			if s.NoCRI && s.RuntimeHandler != "" {
				return usage("--snapshotter-only and --runtime-handler exclude each other")
			}
			if s.SystemdCgroup && s.RuntimeHandler == "" {
				return usage("--systemd-cgroup is a setting of a handler: say which with --runtime-handler")
			}
			if s.Address == "" {
				s.Address = cfg.Address
			}
			if s.Root == "" {
				s.Root = cfg.Root
			}
			s.Version, err = containerdversion.Find(cmd.Context(), version, cfg.Containerd.Address)
			unknown := errdefs.IsNotFound(err)
			if err != nil && !unknown {
				return asUsage(err)
			}
			if s.Main, err = containerdversion.ReadFile(main); err != nil {
				return err
			}
			if err := s.Write(a.stdout); err != nil {
				return asUsage(err)
			}
			if unknown {
				a.warn("no containerd was found, so this is for %s; otherwise say --containerd-version", containerdversion.Newest)
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&s.Address, "socket", "", "gRPC socket of ballastd (default: what the configuration says)")
	f.StringVar(&s.Root, "root", "", "root of ballastd (default: what the configuration says)")
	f.StringVar(&s.Platform, "platform", platforms.Format(platforms.DefaultSpec()), "platform of this node")
	f.StringVar(&s.HostsDir, "hosts-dir", defaultHostsDir, "directory of hosts.toml files")
	f.StringVar(&s.RuntimeHandler, "runtime-handler", "", "let only pods of this handler use ballast")
	f.BoolVar(&s.SystemdCgroup, "systemd-cgroup", false, "set SystemdCgroup for that handler")
	f.StringVar(&version, "containerd-version", "", "version of containerd, such as 2.3 (default: that of this node)")
	f.StringVar(&main, "containerd-config", setup.ContainerdConfig("/"), "configuration file of containerd, which will import the drop-in")
	f.BoolVar(&s.NoCRI, "snapshotter-only", false, "set nothing for Kubernetes")
	return c
}

// asUsage makes an error about a value of the command line a usage error.
func asUsage(err error) error {
	if errdefs.IsInvalidArgument(err) {
		return &usageError{err}
	}
	return err
}

func (a *app) versionCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "version",
		Short: "print the versions of this command and of the daemon",
		Args:  cobra.NoArgs,
	}
	out := outputFlag(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		v := struct {
			Client admin.Version  `json:"client"`
			Server *admin.Version `json:"server,omitempty"`
			Error  string         `json:"error,omitempty"`
		}{Client: admin.ThisVersion()}
		cl, err := a.client()
		if err == nil {
			defer cl.Close()
			var s admin.Version
			if s, err = cl.Version(cmd.Context()); err == nil {
				v.Server = &s
			}
		}
		if err != nil {
			v.Error = admin.Text(err)
		}
		if *out == outJSON {
			return a.printJSON(v)
		}
		rows := [][]string{{"ballast", v.Client.Version, v.Client.Revision, v.Client.Go}}
		if v.Server != nil {
			rows = append(rows, []string{"ballastd", v.Server.Version, v.Server.Revision, v.Server.Go})
		} else {
			rows = append(rows, []string{"ballastd", v.Error})
		}
		return a.table(rows)
	}
	return c
}

package main

import (
	"cmp"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/host/containerdversion"
	"github.com/ballast-dev/ballast/cmd/internal/installer/node"
	"github.com/ballast-dev/ballast/cmd/internal/installer/snippet"
	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
)

func (a *app) configCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "config COMMAND",
		Short: "print configuration for containerd",
	}
	c.AddCommand(a.configContainerdCommand(), a.configHostsCommand(), a.configRotateCommand())
	return group(c)
}

// likeUsage is about --like.
const likeUsage = "handlers whose runtime and options --runtime-handler gets, such as nvidia: the first that the node has, where " +
	node.DefaultHandler + " is its default handler (default: " + node.DefaultHandler + ")"

func (a *app) configContainerdCommand() *cobra.Command {
	var s snippet.Containerd
	var version, main string
	var like []string
	c := &cobra.Command{
		Use:   "containerd",
		Short: "print the drop-in for containerd's configuration",
		Long: `Print the drop-in for containerd's configuration. It depends on the version of the running containerd
(containerd.address), or of the installed program; --containerd-version overrides it. It has the format of
the main configuration file where the two must not differ.

By default all pods use ballast; ordinary images behave as with overlayfs. With --runtime-handler, only
pods with a RuntimeClass of that handler use it. With --snapshotter-only, nothing is configured for
Kubernetes: use "--snapshotter ballast" of ctr and nerdctl.`,
		Example: "  ballast config containerd > /etc/containerd/conf.d/ballast.toml",
		Args:    noArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.load()
			if err != nil {
				return err
			}
			if s.NoCRI && s.RuntimeHandler != "" {
				return usage("--snapshotter-only and --runtime-handler cannot be used together")
			}
			if len(like) > 0 && s.RuntimeHandler == "" {
				return usage("--like is for --runtime-handler")
			}
			s.Address, s.Root = cmp.Or(s.Address, cfg.Address), cmp.Or(s.Root, cfg.Root)
			s.Platform = cmp.Or(s.Platform, node.HostPlatform())
			v, err := node.Look(cmd.Context(), node.Options{Config: cfg, Main: main, Version: version})
			if err != nil {
				return asUsage(err)
			}
			s.Main = v.Containerd.Main()
			if v.Unknown == nil {
				s.Version = v.Version
			}
			if s.RuntimeHandler != "" {
				if s.Handler, err = v.HandlerLike(v.Containerd, like, s.RuntimeHandler); err != nil {
					return err
				}
			}
			if err := s.Write(a.stdout); err != nil {
				return asUsage(err)
			}
			if v.Unknown != nil {
				a.warn("no containerd was found, so this is for version %s; use --containerd-version for another one", containerdversion.Newest)
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&s.Address, "socket", "", "gRPC socket of ballastd (default: from the configuration)")
	f.StringVar(&s.Root, "root", "", "root of ballastd (default: from the configuration)")
	f.StringVar(&s.Platform, "platform", "", "platform of the node, such as linux/amd64 (default: this one)")
	f.StringVar(&s.HostsDir, "hosts-dir", config.ContainerdHostsDir, "directory of hosts.toml files")
	f.StringVar(&s.RuntimeHandler, "runtime-handler", "", "use ballast only for pods of this runtime handler")
	f.StringSliceVar(&like, "like", nil, likeUsage)
	f.StringVar(&version, "containerd-version", "", "version of containerd, such as 2.3 (default: that of this node)")
	f.StringVar(&main, "containerd-config", "", "configuration file of containerd, which imports the drop-in (default: that of this node)")
	f.BoolVar(&s.NoCRI, "snapshotter-only", false, "configure nothing for Kubernetes")
	return c
}

// asUsage turns an error about a value of the command line into a usage error.
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
		Args:  noArgs(""),
	}
	out := outputFlag(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		v := struct {
			Client wire.Version  `json:"client"`
			Server *wire.Version `json:"server,omitempty"`
			Error  string        `json:"error,omitempty"`
		}{Client: wire.ThisVersion()}
		cl, err := a.client()
		if err == nil {
			defer cl.Close()
			var s wire.Version
			if s, err = cl.Version(cmd.Context()); err == nil {
				v.Server = &s
			}
		}
		if err != nil {
			v.Error = wire.Text(err)
		}
		rows := [][]string{append([]string{"ballast"}, v.Client.Fields()...)}
		if v.Server != nil {
			rows = append(rows, append([]string{"ballastd"}, v.Server.Fields()...))
		} else {
			rows = append(rows, []string{"ballastd", v.Error})
		}
		versions := []string{v.Client.Version}
		if v.Server != nil {
			versions = append(versions, v.Server.Version)
		}
		return a.show(*out, v, versions, rows)
	}
	return c
}

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/cmd/internal/snippet"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/spf13/cobra"
)

// defaultHostsDir is where CRI looks for hosts.toml files when we have set it up.
const defaultHostsDir = "/etc/containerd/certs.d"

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
	c.AddCommand(a.configContainerdCommand(), a.configHostsCommand())
	return c
}

func (a *app) configContainerdCommand() *cobra.Command {
	var s snippet.Containerd
	c := &cobra.Command{
		Use:   "containerd",
		Short: "print the drop-in for containerd's configuration",
		Long: `Print the drop-in for containerd's configuration, version 4 (containerd 2.4).

By default all pods use ballast; ordinary images are handled as overlayfs does. With
--runtime-handler only pods of a runtimeClass with that handler do. With --snapshotter-only
nothing is set for Kubernetes: ctr and nerdctl take "--snapshotter ballast".`,
		Example: "  ballast config containerd > /etc/containerd/conf.d/ballast.toml",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
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
			return asUsage(s.Write(a.stdout))
		},
	}
	f := c.Flags()
	f.StringVar(&s.Address, "socket", "", "gRPC socket of ballastd (default: what the configuration says)")
	f.StringVar(&s.Root, "root", "", "root of ballastd (default: what the configuration says)")
	f.StringVar(&s.Platform, "platform", platforms.Format(platforms.DefaultSpec()), "platform of this node")
	f.StringVar(&s.HostsDir, "hosts-dir", defaultHostsDir, "directory of hosts.toml files")
	f.StringVar(&s.RuntimeHandler, "runtime-handler", "", "let only pods of this handler use ballast")
	f.BoolVar(&s.SystemdCgroup, "systemd-cgroup", false, "set SystemdCgroup for that handler")
	f.BoolVar(&s.NoCRI, "snapshotter-only", false, "set nothing for Kubernetes")
	return c
}

func (a *app) configHostsCommand() *cobra.Command {
	var h snippet.Hosts
	var dir string
	var write, force bool
	c := &cobra.Command{
		Use:   "hosts REGISTRY",
		Short: "print the hosts.toml that sends a registry's tags through ballast",
		Long: `Print the hosts.toml that sends a registry's tags through ballast, and through nothing else: while
ballastd is stopped, a pull by tag fails; it never gives an unconverted model.

REGISTRY is a host as it stands in references, such as ghcr.io or docker.io, or _default for
every registry without a directory of its own. For _default containerd knows only two forms;
the file says what each means.`,
		Example: "  ballast config hosts registry.ollama.ai --write",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			cfg, err := a.load()
			if err != nil {
				return err
			}
			h.Registry = args[0]
			if h.Facade == "" {
				h.Facade = cfg.Facade.Listen
			}
			if h.Facade == "" {
				return fmt.Errorf("facade.listen is empty, there is no facade: %w", errdefs.ErrFailedPrecondition)
			}
			var b bytes.Buffer
			if err := h.Write(&b); err != nil {
				return asUsage(err)
			}
			if !write {
				_, err := a.stdout.Write(b.Bytes())
				return err
			}
			return a.writeHosts(filepath.Join(dir, h.Registry, "hosts.toml"), b.Bytes(), force)
		},
	}
	f := c.Flags()
	f.StringVar(&h.Facade, "facade", "", "host:port of the facade (default: what the configuration says)")
	f.BoolVar(&h.PlainHTTP, "plain-http", false, "the registry itself speaks HTTP")
	f.BoolVar(&h.Open, "open", false, "_default: let tags be resolved without ballastd too")
	f.BoolVar(&write, "write", false, "write the file below --hosts-dir")
	f.StringVar(&dir, "hosts-dir", defaultHostsDir, "directory of hosts.toml files")
	f.BoolVar(&force, "force", false, "replace a file that is different")
	return c
}

// writeHosts writes a hosts.toml. One that is different is replaced only by force.
func (a *app) writeHosts(path string, p []byte, force bool) error {
	old, err := os.ReadFile(path)
	switch {
	case err == nil && bytes.Equal(old, p):
		fmt.Fprintf(a.stderr, "%s is up to date\n", path)
		return nil
	case err == nil && !force:
		return fmt.Errorf("%s exists and is different; bring them together, or use --force: %w", path, errdefs.ErrAlreadyExists)
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	fresh := path + ".new" // containerd may read at any time
	if err := os.WriteFile(fresh, p, 0o644); err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return err
	}
	fmt.Fprintf(a.stderr, "wrote %s\n", path)
	return nil
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

package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/installer/setup"
	"github.com/ballast-dev/ballast/cmd/internal/installer/snippet"
	"github.com/ballast-dev/ballast/store/durable"
	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
)

// hostsFlags are the flags of "config hosts".
type hostsFlags struct {
	snippet.Hosts
	root, dir    string
	write, force bool
}

func (a *app) configHostsCommand() *cobra.Command {
	var o hostsFlags
	c := &cobra.Command{
		Use:   "hosts REGISTRY",
		Short: "print the hosts.toml that closes a registry: its tags go through ballast",
		Long: `Print the hosts.toml that sends the tags of a registry through ballast only: while ballastd is stopped,
a pull by tag fails; it never gives an unconverted model. The file names the keys with which containerd
and the facade authenticate each other; ballastd creates them at its start.

REGISTRY is a host as in references, such as ghcr.io or docker.io, or _default for every registry
without a directory of its own. containerd supports only two forms of _default; the file explains them.`,
		Example: "  ballast config hosts registry.ollama.ai --write",
		Args:    numberOfArgs(0, 1, "one registry expected"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("say which registry: a host, or _default")
			}
			cfg, err := a.load()
			if err != nil {
				return err
			}
			if err := o.complete(cfg); err != nil {
				return err
			}
			o.Registry = args[0]
			dir := snippet.Dir(o.dir, o.Registry, isDir)
			if old, err := os.ReadFile(filepath.Join(dir, "hosts.toml")); err == nil && !cmd.Flags().Changed("plain-http") {
				o.PlainHTTP = snippet.HasPlainHTTP("\n"+string(old), o.Registry)
			}
			if entries, err := os.ReadDir(dir); err == nil && o.Registry != snippet.DefaultRegistry && !o.PlainHTTP {
				var names []string
				for _, e := range entries {
					names = append(names, e.Name())
				}
				o.Certificates(names)
			}
			var b bytes.Buffer
			if err := o.Write(&b); err != nil {
				return asUsage(err)
			}
			if !o.write {
				_, err := a.stdout.Write(b.Bytes())
				return err
			}
			return a.writeHosts(filepath.Join(dir, "hosts.toml"), b.Bytes(), &o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.Facade, "facade", "", "host:port of the facade (default: from the configuration)")
	f.StringVar(&o.root, "root", "", "root of ballastd, which has the keys (default: from the configuration)")
	f.BoolVar(&o.PlainHTTP, "plain-http", false, "the registry itself uses plain HTTP (default: as the file there says); upstream.hosts_dir must say so too, unless it is on this machine")
	f.BoolVar(&o.Open, "open", false, "for _default: tags can also be resolved without ballastd")
	f.BoolVar(&o.write, "write", false, "write the file into --hosts-dir")
	f.StringVar(&o.dir, "hosts-dir", config.ContainerdHostsDir, "directory of hosts.toml files")
	f.BoolVar(&o.force, "force", false, "replace an existing file that differs")
	return c
}

// complete sets the address and the keys of the facade from the configuration, unless flags give
// them.
func (o *hostsFlags) complete(c *config.Config) error {
	with := *c
	with.Facade.Listen, with.Root = cmp.Or(o.Facade, c.Facade.Listen), cmp.Or(o.root, c.Root)
	hosts, err := setup.HostsOf(&with)
	if err != nil && o.Facade != "" {
		return usage("--facade: %w", err)
	}
	if err != nil {
		return err
	}
	o.Facade, o.CA, o.Client = hosts.Facade, hosts.CA, hosts.Client
	return nil
}

// isDir reports whether a path is a directory.
func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// writeHosts writes a hosts.toml. An existing file that differs is replaced only by force; what it says of the registry
// is kept beside it.
func (a *app) writeHosts(path string, p []byte, o *hostsFlags) error {
	old, err := os.ReadFile(path)
	switch {
	case err == nil && bytes.Equal(old, p):
		fmt.Fprintf(a.stderr, "%s is up to date\n", path)
		return nil
	case err == nil && !o.force:
		return fmt.Errorf("%s exists and differs; compare it with the output of this command without --write, or replace it with --force: %w", path, errdefs.ErrAlreadyExists)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if said := snippet.Settings(string(old), o.Registry); len(said) > 0 && !strings.Contains(string(old), o.Facade) {
		if err := durable.WriteFile(path+".before", old, 0o600); err != nil {
			return err
		}
		a.note("%s.before says of %s what ballastd does not know (%s): copy that to hosts.toml below upstream.hosts_dir", path, o.Registry, strings.Join(said, ", "))
	}
	// containerd may read it at any time; an empty file after a crash would fail open.
	if err := durable.WriteFile(path, p, 0o644); err != nil {
		return err
	}
	fmt.Fprintf(a.stderr, "wrote %s\n", path)
	return nil
}

func (a *app) configRotateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rotate-ca",
		Short: "replace the keys with which containerd and the facade authenticate each other",
		Long: `Replace the keys with which containerd and the facade of this node authenticate each other, because they
may have leaked. Normal renewal needs no command. hosts.toml files stay as they are. A running pull can
fail once; the kubelet tries it again.`,
		Args: noArgs(""),
		RunE: a.asks(func(cmd *cobra.Command, cl *wire.Client, _ []string) error {
			if err := cl.RotateCA(cmd.Context()); err != nil {
				return err
			}
			fmt.Fprintln(a.stderr, "the keys of the facade were replaced")
			return nil
		}),
	}
}

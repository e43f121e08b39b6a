package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
)

func (a *app) resolveCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "resolve REF",
		Short: "print where a model is mounted; for users of a group, without root",
		Long: `Print the directory at which root has mounted a model ("ballast mount REF DIR"). With -o json, also its format, its
digests and its files. Users of the group in resolve.group can run this command. It mounts and downloads nothing,
and knows only models that everybody can read in their registry.

A link to ballast with the name llmman answers "llmman resolve REF" as that program does, as --llmman does here: with
one line of JSON that has the reference, the path of the directory or GGUF file that an engine loads, and whether it is
"safetensors" or "gguf". So engines that run llmman, such as vLLM with its plugin, read models of this node:

  ln -s "$(command -v ballast)" /usr/local/bin/llmman
  vllm serve oci://ghcr.io/team/model:v1`,
		Example: "  vllm serve \"$(ballast resolve ghcr.io/team/model:v1)\"\n  ballast resolve ghcr.io/team/model:v1 -o json",
		Args:    modelArgs(1, 1),
	}
	out := outputFlag(c)
	var socket string
	var llmman bool
	c.Flags().BoolVar(&llmman, "llmman", false, "print what \"llmman resolve\" prints")
	c.Flags().StringVar(&socket, "socket", "", "socket to ask (default: resolve.address of the configuration)")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		ref, err := resolve.ParseRef(args[0])
		if err != nil {
			return &usageError{err}
		}
		if llmman && cmd.Flags().Changed("output") {
			return usage("--llmman and --output are two forms of one answer")
		}
		if socket == "" {
			socket = config.Default().Resolve.Address
			if cfg, err := a.load(); err == nil {
				socket = cfg.Resolve.Address
			} else if !errors.Is(err, fs.ErrPermission) { // only root may read it
				return err
			}
		}
		cl := wire.NewClient(socket)
		defer cl.Close()
		m, err := cl.Resolve(cmd.Context(), ref.String())
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("there is no socket %s; root sets resolve.group in the configuration of ballastd: %w", socket, errdefs.ErrUnavailable)
		case errdefs.IsPermissionDenied(err):
			return fmt.Errorf("this user is not in the group of resolve.group: %w", errdefs.ErrPermissionDenied)
		case err != nil:
			return err
		case llmman:
			return a.printEngineModel(m)
		}
		return a.show(*out, m, []string{m.Path}, [][]string{{m.Path}})
	}
	return c
}

package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/hashstate"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/spf13/cobra"
)

func (a *app) tablesCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "tables COMMAND",
		Short: "make unconverted models readable before they are complete, on other nodes",
	}
	c.AddCommand(a.tablesPushCommand())
	return group(c)
}

// A tablesPush is an invocation of "tables push".
type tablesPush struct {
	to, sign string // empty: as configured
}

func (a *app) tablesPushCommand() *cobra.Command {
	var p tablesPush
	c := &cobra.Command{
		Use:   "push REF",
		Short: "write a signed table of hash states for each large file of a model into a registry",
		Long: `Write a table of hash states for each large file without chunk digests of a model that is complete on this node:
32 bytes for each 4 MiB, and 32 for the first 256 KiB. Nodes with this repository as lazy.tables, and the public key
of KEY in lazy.table_keys, read the files before they are complete, and verify each of these parts by the table. The
weights are not written, and nodes fetch them from the registry of the model as before.

Whoever has KEY vouches for what these nodes read of the files before they are complete. Whoever can read the
repository of tables learns which files there are: of a model that not everybody may have, write them where the
same people can read.`,
		Example:           "  ballast tables push registry.ollama.ai/library/llama3.2:1b --to registry.example/team/tables --sign tables.key",
		Args:              modelArgs(1, 1),
		ValidArgsFunction: a.completes(1, modelRefs),
	}
	c.Flags().StringVar(&p.to, "to", "", "`repository` of the tables (default: lazy.tables of the configuration)")
	c.Flags().StringVar(&p.sign, "sign", "", "private key that signs them, a `file` in PEM (default: lazy.table_sign of the configuration)")
	c.RunE = a.asks(func(cmd *cobra.Command, cl *wire.Client, args []string) error {
		return a.pushTables(cmd.Context(), cl, args[0], p)
	})
	return c
}

// pushTables writes the tables of a model.
func (a *app) pushTables(ctx context.Context, cl *wire.Client, name string, p tablesPush) error {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	to, sign := cmp.Or(p.to, cfg.Lazy.Tables), cmp.Or(p.sign, cfg.Lazy.TableSign)
	switch {
	case to == "":
		return usage("no repository for the tables: use --to, or set lazy.tables")
	case sign == "":
		return usage("no key signs the tables: use --sign, or set lazy.table_sign")
	}
	ref, err := remote.ParseRef(to)
	if err != nil || ref.Name() != to {
		return usage("--to %.300q is not a repository, such as registry.example/team/tables", to)
	}
	key, err := privateKey(sign)
	if err != nil {
		return err
	}
	resolver, err := a.resolver(name)
	if err != nil {
		return err
	}
	defer resolver.Upstream.Close()
	dst, err := resolver.Upstream.NodeRepository(ref)
	if err != nil {
		return err
	}
	files, err := cl.HashStates(ctx, name)
	if err != nil {
		return err
	}
	if len(files) == 0 && !a.quiet {
		_, err = fmt.Fprintf(a.stdout, "%s needs no table: its large files have chunk digests, or it has none\n", name)
		return err
	}
	for _, f := range files {
		show := a.progress(outTable, name)
		s, err := cl.HashStatesOf(ctx, wire.HashStatesRequest{Name: name, Blob: f.Digest}, show.event)
		show.end()
		if err != nil {
			return err
		}
		written, err := hashstate.Write(ctx, dst, key, filetable.Blob{Digest: s.Digest, Size: s.Size}, s.States)
		if err != nil {
			return fmt.Errorf("table of %s: %w", f.Path, err)
		}
		if a.quiet {
			continue
		}
		what := "written"
		if !written {
			what = "was there"
		}
		if _, err := fmt.Fprintf(a.stdout, "%s  %s  %s:%s\n", f.Path, what, ref.Name(), hashstate.Tag(f.Digest)); err != nil {
			return err
		}
	}
	return nil
}

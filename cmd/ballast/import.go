package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/layout"
	"github.com/ballast-dev/ballast/convert/ollama/localstore"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
)

func (a *app) importCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "import oci:DIR[:TAG] | TAR | -",
		Short: "import models from an archive, or from another program on this machine",
		Long: `Import the models of an archive of images into the store, verify and pin them: of an OCI layout (oci:DIR), or of
a tar file of one, plain or compressed with gzip or zstd, as "ballast convert REF oci:DIR", skopeo, "docker save"
and "ctr images export --local" write them. - reads the tar file from stdin.

The models get the names that the archive has, or --name. Pods can then pull them by these names on a node
whose registry does not answer; when it does, it wins. All models of an archive are imported, or none.

Every user of the node can read an imported model, unless --private is given: then only who can read it in its
registry, which must answer.`,
		Example: "  ballast import model.tar.zst\n  ballast import oci:./model:v1 --name ghcr.io/team/model:v1\n  docker save ghcr.io/team/model:v1 | ballast import -",
		Args:    cobra.ArbitraryArgs,
	}
	var r wire.ArchiveRequest
	out := outputFlag(c)
	f := c.Flags()
	f.StringVar(&r.Name, "name", "", "reference of the only model, such as ghcr.io/team/model:v1 (default: the names in the archive)")
	f.BoolVar(&r.Private, "private", false, "only for users who can read the model in its registry")
	ttlFlag(c, &r.TTL)
	archive := a.asks(func(cmd *cobra.Command, cl *wire.Client, args []string) error {
		return a.importArchive(cmd, cl, args[0], r, *out)
	})
	c.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return usage("name an archive, oci:DIR, TAR or - for stdin, or use \"ballast import ollama\"")
		case len(args) > 1:
			return usage("one archive expected, got %d: %.300q", len(args), args)
		}
		if r.Name != "" {
			if _, err := registry.ImportName(r.Name, ""); err != nil {
				return &usageError{err}
			}
		}
		return archive(cmd, args)
	}
	c.AddCommand(a.importOllamaCommand())
	return c
}

// importArchive imports the models of an archive.
func (a *app) importArchive(cmd *cobra.Command, cl *wire.Client, name string, r wire.ArchiveRequest, out output) (err error) {
	path, isLayout := strings.CutPrefix(name, layout.Scheme)
	if isLayout {
		path, r.Tag = layout.Split(path)
	}
	var stream io.Reader
	if name == "-" {
		if isTerminal(cmd.InOrStdin()) {
			return usage("stdin is a terminal; give the archive to it: ballast import - < TAR")
		}
		stream = cmd.InOrStdin()
	} else if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if _, wrong := resolve.ParseRef(name); wrong == nil {
			return usage("%s is no file; to get it from a registry: \"ballast pull %s\"", printable(name), printable(name))
		}
		return usage("%w; archives are oci:DIR, TAR or -, and \"ballast import ollama\" has other models", err)
	} else if r.Path, err = filepath.Abs(path); err != nil {
		return err
	}
	return a.imported(cmd.Context(), name, out, stream == nil, func(event func(wire.Event)) ([]wire.Imported, error) {
		return cl.ImportArchive(cmd.Context(), r, stream, event)
	})
}

// imported shows an import of what is called name, and prints its models. With lasting, ballastd continues after
// Ctrl-C.
func (a *app) imported(ctx context.Context, name string, out output, lasting bool, run func(event func(wire.Event)) ([]wire.Imported, error)) error {
	p, start := a.progress(out, name), time.Now()
	imported, err := run(p.event)
	p.end()
	if ctx.Err() != nil {
		if lasting {
			a.detached(name)
		}
		return ctx.Err()
	}
	if err != nil {
		err = wire.About(name, err)
		if out == outJSON {
			p.event(wire.Event{Status: wire.StatusError, Error: wire.Wrap(err)})
		}
		return err
	}
	if out == outJSON {
		return json.NewEncoder(a.stdout).Encode(wire.ImportEvent{Event: wire.Event{Status: wire.StatusSuccess}, Imported: imported})
	}
	for _, m := range imported {
		line := m.Image.Manifest.String()
		if !a.quiet {
			line = fmt.Sprintf("%s  %s  %s%s  %s", printable(m.Ref), shortDigest(line), size(m.Image.Size), sharedText(m.Linked), took(time.Since(start)))
		}
		if _, err := fmt.Fprintln(a.stdout, line); err != nil {
			return err
		}
	}
	return nil
}

// An importing has the flags of an import.
type importing struct {
	models []string
	dir    string
	r      wire.ImportRequest
	out    output
}

func (a *app) importOllamaCommand() *cobra.Command {
	var i importing
	c := &cobra.Command{
		Use:   "ollama [MODEL...]",
		Short: "import models of a local Ollama, verify and pin them",
		Long: `Import models of a local Ollama, verify and pin them. Without MODEL, all models are imported. A later pull by
their name in the registry downloads no weights.

Ollama's files are only read. A model shares its space with them if the file system supports reflinks, or
if only root can write to them (hard link: owner root, mode 0644); otherwise the bytes are copied. Every
file is compared with its digest first.

ballastd does the work, and continues if you interrupt this command.`,
		Example: "  ballast import ollama\n  ballast import ollama llama3.2:1b --dir /usr/share/ollama/.ollama/models",
	}
	out := outputFlag(c)
	f := c.Flags()
	f.StringVar(&i.dir, "dir", "", "directory of Ollama's models (default: $OLLAMA_MODELS, ~/.ollama/models, that of the service)")
	pinFlags(c, &i.r.TTL, &i.r.NoPin)
	c.RunE = a.asks(func(cmd *cobra.Command, cl *wire.Client, args []string) error {
		for _, s := range args {
			if _, err := localstore.ParseName(s); err != nil {
				return &usageError{err}
			}
		}
		i.models, i.out = args, *out
		return a.importOllama(cmd.Context(), cl, i)
	})
	return c
}

// importOllama imports models one after the other. It continues after an error and returns the
// first.
func (a *app) importOllama(ctx context.Context, cl *wire.Client, i importing) (err error) {
	if i.r.Dir, err = localstore.Dir(config.Getenv, i.dir, "--dir"); err != nil {
		return err
	}
	if len(i.models) == 0 {
		if i.models, err = cl.ImportModels(ctx, i.r.Dir); err != nil {
			return err
		}
		if len(i.models) == 0 {
			return fmt.Errorf("%s has no models: %w", i.r.Dir, errdefs.ErrNotFound)
		}
	}
	return each(a, i.models, func(model string) error {
		i.r.Model = model
		return a.imported(ctx, model, i.out, true, func(event func(wire.Event)) ([]wire.Imported, error) { return cl.Import(ctx, i.r, event) })
	})
}

// sharedText describes which bytes were not copied.
func sharedText(l wire.Linked) string {
	var parts []string
	if l.Cloned > 0 {
		parts = append(parts, size(l.Cloned)+" reflinked")
	}
	if l.Hard > 0 {
		parts = append(parts, size(l.Hard)+" linked")
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

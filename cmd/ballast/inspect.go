package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/translate"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/headers"
	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
)

func (a *app) inspectCommand() *cobra.Command {
	var fromRegistry bool
	var origin string
	var choice convert.Choice
	c := &cobra.Command{
		Use:   "inspect REF|DIGEST",
		Short: "show the format, files, config and origin of a model",
		Long:  "Show the format, files and origin of a model of this node, its properties from the origin or the headers of its\nfiles, and what of the origin has no place in ModelPack. With --remote, ask the registry, or read any other SRC of\n\"ballast convert\": this works without ballastd and downloads no weights.\n\nWith -o cyclonedx, print a bill of materials (AIBOM) in CycloneDX 1.6: the model with its licences, origin and the state\nof its signatures, and its files with their digests.",
		Args: func(cmd *cobra.Command, args []string) error {
			if i := slices.IndexFunc(args, isDocument); len(args) == 2 && i >= 0 && cmd.Flags().Changed("origin") {
				return fmt.Errorf("write --origin=%s: the document is part of the flag", args[i])
			}
			return modelArgs(1, 1)(cmd, args)
		},
	}
	out := outputFlag(c, outCycloneDX)
	choiceFlags(c, &choice)
	c.Flags().BoolVar(&fromRegistry, "remote", false, "ask the registry instead of ballastd")
	c.Flags().StringVar(&origin, "origin", "", "print the `document` of the origin byte for byte: manifest, config, or child of a list")
	c.Flags().Lookup("origin").NoOptDefVal = "manifest"
	c.ValidArgsFunction = a.completes(1, modelRefs)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		var d wire.Detail
		var err error
		if !fromRegistry && len(choice.Include)+len(choice.Exclude) > 0 {
			return usage("--include and --exclude go with --remote")
		}
		if fromRegistry {
			d, err = a.remoteDetail(cmd.Context(), args[0], choice)
		} else if err = names(args); err == nil {
			d, err = a.localDetail(cmd.Context(), args[0])
		}
		if err != nil {
			return err
		}
		if origin != "" {
			return a.originDocument(d, origin)
		}
		switch *out {
		case outCycloneDX:
			return a.printBOM(d)
		case outJSON:
			d.Documents = nil // large; --origin prints them
			return a.printJSON(d)
		}
		if a.quiet {
			_, err := fmt.Fprintln(a.stdout, d.ID())
			return err
		}
		return a.detail(d)
	}
	return c
}

// isDocument reports whether a word is a value of --origin.
func isDocument(s string) bool { return slices.Contains([]string{"manifest", "config", "child"}, s) }

func (a *app) localDetail(ctx context.Context, name string) (wire.Detail, error) {
	cl, err := a.client()
	if err != nil {
		return wire.Detail{}, err
	}
	defer cl.Close()
	d, err := cl.Image(ctx, name)
	if errdefs.IsNotFound(err) {
		err = fmt.Errorf("%w; \"ballast inspect --remote\" asks the registry", err)
	}
	return d, err
}

// originDocument prints a document of the origin unchanged.
func (a *app) originDocument(d wire.Detail, which string) error {
	p, err := d.OriginDocument(which)
	if errdefs.IsInvalidArgument(err) {
		return &usageError{err}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(d.Refs, " "), err)
	}
	_, err = a.stdout.Write(p)
	return err
}

// remoteDetail converts a model in this process, and returns what the daemon would return.
func (a *app) remoteDetail(ctx context.Context, name string, choice convert.Choice) (_ wire.Detail, err error) {
	_, src, closeSrc, err := a.source(ctx, name, "", choice)
	if err != nil {
		return wire.Detail{}, err
	}
	defer func() { err = errors.Join(err, closeSrc()) }()
	im, err := src.Image()
	if err != nil {
		return wire.Detail{}, err
	}
	for _, p := range src.Problems {
		a.warn("%s", p)
	}
	model := src.Model
	d := wire.Detail{
		Image: wire.Image{State: wire.StateRemote, Record: wire.Record{
			Origin: wire.Origin(model.Table.Origin), Refs: []string{src.Name}, Manifest: im.Digest,
		}},
		Files: translate.Files(model.Table.Seen()), Blobs: translate.Blobs(model.Table.Blobs), ConfigJSON: im.Config,
		Description: translate.Describe(model.Config, model.ContextLength, model.Runner, headers.Report{}),
	}
	for _, f := range d.Files {
		d.Size += f.Size
	}
	translate.Explain(&d, &model.Table)
	return d, nil
}

// detail prints d as text.
func (a *app) detail(d wire.Detail) error {
	converted := d.Manifest.String()
	if converted == "" {
		converted = "elsewhere; table " + d.Table.String()
	}
	head := [][]string{}
	refs := orNone(d.Image)
	for _, ref := range refs {
		head = append(head, []string{"Reference:", ref})
	}
	if d.Origin.Prefix != "" {
		head = append(head, []string{"Directory:", d.Origin.Prefix + "/ in a mount"})
	}
	head = append(head, [][]string{
		{"Format:", d.Origin.Format},
		{"Origin:", d.Origin.Digest.String()},
		{"Mapping:", "version " + strconv.Itoa(d.Origin.Mapping)},
		{"Converted:", converted},
		{"Size:", size(d.Size) + " (" + strconv.FormatInt(d.Size, 10) + " bytes)"},
		{"State:", state(d.Image, refs[0])},
	}...)
	if c := d.Chunks; c != nil {
		head = append(head, []string{"Chunks:", fmt.Sprintf("%d, %s of %s are in other objects of this node too", c.Chunks, size(c.Shared), size(c.Bytes))})
	}
	if d.Error != nil {
		head = append(head, []string{"Error:", d.Error.Message})
	}
	for _, p := range d.Pins {
		head = append(head, []string{"Pin:", p.Name + ", expires " + expires(p.Expires)})
	}
	for _, r := range d.Signatures {
		head = append(head, []string{"Signed:", strings.Join(r.Signers, "; ") + ", as rule " + r.Rule + " wants it"})
	}
	head = append(head, descriptionRows(d.Description)...)
	head = append(head, originRows(d)...)
	if err := a.table(head); err != nil {
		return err
	}
	if len(d.Files) == 0 {
		return nil
	}
	rows := [][]string{{"FILE", "SIZE", "MODE", "OWNER", "DIGEST"}}
	for _, f := range d.Files {
		digest := f.Digest.String()
		switch f.Type {
		case wire.TypeDir:
			continue
		case wire.TypeSymlink:
			digest = "→ " + f.Target
		}
		rows = append(rows, []string{f.Path, size(f.Size), fmt.Sprintf("%04o", f.Mode), fmt.Sprintf("%d:%d", f.UID, f.GID), digest})
	}
	fmt.Fprintln(a.stdout)
	return a.table(rows)
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/door/upstream"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/layout"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"
)

// convertHelp is the text of "ballast convert --help".
const convertHelp = `Write a model to a registry or an OCI layout, in one of several forms. It works without ballastd. Blobs
that the target already has are not sent again. The tag is written last, when everything else is there.

SRC  ghcr.io/team/model:v1      a registry reference
     hf:ORG/REPO[@REVISION]     a repository of the Hub of Hugging Face; hf.co/ORG/REPO:Q4_K_M is a
                                quantisation of it
     oci:DIR[:TAG]              an OCI layout, or its directory alone
     ./DIR, ./FILE              a directory of model files (also a snapshot of a hub's cache), or a file
     ./FILE.carton              a carton, or the directory that one was unpacked to
     https://HOST/FILE.carton   a carton at a URL
     ollama:[DIR:]MODEL         a model of a local Ollama; DIR begins with / or . and can be left out
DST  ghcr.io/team/model:v2, oci:DIR[:TAG], FILE.carton with --as carton

With --referrer, the image that nodes make of SRC is written into the repository of SRC, as a referrer of
its manifest. REF@DIGEST then works on every node, also where the tag was never seen, and can be signed.
Omit DST, or use another tag of the same repository.

A tag of DST is replaced if ballast wrote what it has, and that is not SRC. SRC itself, what another program
wrote, and an existing FILE.carton are replaced with --force only.

In a directory, symbolic links are followed. Executable files get mode 0755, others 0644. Owners are not
kept.

Forms (--as):
  ballast    the image that nodes make of a model, with chunk digests: for each tensor, and for each
             4 MiB of other files (default). --compress zstd-seekable (a blob for each file) or
             zstd-chunked (tars) compresses the files in chunks
  modelpack  a ModelPack artifact with a raw layer for each file, or a tar with --tar. "oras pull"
             writes the files
  cnai       the same with the types of CNAI, the former name of ModelPack, and a tar for each file, as
             modctl v0.2.2 writes and reads it
  image      an ordinary image of tars, for any runtime. With --compress zstd-chunked, Podman downloads
             single chunks, and other runtimes read ordinary zstd
  carton     a packed carton, a file. A carton is written as it was; of any other model, --runner and
             --runner-framework name the carton runner that loads its files

With these two flags, a directory that was never packed is a carton for the other forms too.

--sign and --signing-config sign the manifest and the files. --signing-config needs no key, but the token of who signs, such
as that of a job in CI, and ballast-keyless beside ballast: a certificate for it, and entries in public logs, show its name.

--prefix DIR puts the files into a directory of the mount: KServe, for one, mounts the directory models of an
image only.`

func (a *app) convertCommand() *cobra.Command {
	var o export.Options
	var form, compress, prefix string
	var facts format.Facts
	var choice convert.Choice
	var said publication
	c := &cobra.Command{
		Use:   "convert SRC [DST]",
		Short: "write a model to a registry or an OCI layout, in one of several forms",
		Long:  convertHelp,
		Example: "  ballast convert registry.ollama.ai/library/llama3.2:1b ghcr.io/team/llama:1b --as modelpack\n" +
			"  ballast convert ghcr.io/team/model:v1 --referrer --sign team.key\n" +
			"  ballast convert ./my-model ghcr.io/team/model:v1 --as modelpack --signing-config signing_config.json\n" +
			"  ballast convert ./my-model oci:/tmp/layout:v1 --as image",
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return errors.New("no model given: SRC and DST are needed")
			case len(args) == 1 && !o.Referrer:
				return errors.New("no target given: write for example ghcr.io/team/model:v1 or oci:DIR after SRC")
			case len(args) > 2:
				return fmt.Errorf("one SRC and one DST are taken, and not %d names: %.300q", len(args), args)
			}
			return nil
		},
	}
	out := outputFlag(c)
	choiceFlags(c, &choice)
	said.flags(c)
	sign := signingFlags(c)
	f := c.Flags()
	forms := export.Forms()
	for _, f := range formats.All().Writers() {
		forms = append(forms, string(f.Name))
	}
	f.StringVar(&form, "as", string(export.FormBallast), "form: "+strings.Join(forms, ", "))
	f.StringVar(&facts.Runner, "runner", "", "`name` of the carton runner that loads the files of SRC")
	f.StringVar(&facts.Framework, "runner-framework", "", "`version` of the framework that this runner needs, such as =1.12.1")
	f.BoolVar(&o.Tar, "tar", false, "for modelpack: a tar for each file instead of a raw layer")
	f.BoolVar(&o.NoChunks, "no-chunks", false, "for ballast: no chunk digests; the image is byte for byte what nodes make of SRC")
	f.StringVar(&compress, "compress", "", "for ballast and image: compress files in chunks: "+strings.Join(export.Compressions(), ", "))
	f.StringVar(&prefix, "prefix", "", "`directory` of the files in a mount, such as models for KServe; / is none (default: that of SRC)")
	f.BoolVar(&o.Referrer, "referrer", false, "for ballast: write the image that nodes make of SRC beside it, as a referrer of its manifest")
	f.BoolVar(&o.Force, "force", false, "replace what DST has, also SRC itself and what ballast did not write")
	f.BoolVar(&o.DryRun, "dry-run", false, "show what would be sent")
	f.StringVar(&o.TempDir, "temp-dir", "", "directory for unpacking archives (default: $TMPDIR)")
	for name, values := range map[string][]string{"as": forms, "compress": export.Compressions()} {
		flagValues(c, name, values...)
	}
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("prefix") {
			clean, err := filetable.CleanPrefix(prefix)
			if err != nil {
				return usage("--prefix: %w", err)
			}
			o.Prefix = &clean
		}
		if (facts.Runner == "") != (facts.Framework == "") {
			return usage("--runner and --runner-framework go together")
		}
		if f := formats.All().Get(form); f.Writer != nil {
			if plain := o; sign.given() || compress != "" || plain.Tar || plain.NoChunks || plain.Referrer || plain.DryRun || plain.Prefix != nil || said.given() {
				return usage("--as %s writes FILE%s, and takes --runner, --runner-framework, --temp-dir and --force only", f.Name, f.Writer.Extension)
			}
			return a.pack(cmd.Context(), f, args[0], args[1], choice, o, facts, *out)
		}
		var err error
		if o.Form, err = export.ParseForm(form); err != nil {
			return usage("--as %.100q: forms are %s", form, strings.Join(forms, ", "))
		}
		if o.Compress, err = export.ParseCompression(compress); err != nil {
			return &usageError{err}
		}
		if o.Referrer && (o.Form != export.FormBallast || o.Compress != export.CompressNone || facts != (format.Facts{}) || len(choice.Include)+len(choice.Exclude) > 0) {
			return usage("--referrer goes with --as ballast, and not with --compress, --include and --exclude: it is what a node makes")
		}
		o.NoChunks = o.NoChunks || o.Referrer
		if o.Annotations, err = said.check(o); err != nil {
			return &usageError{err}
		}
		if err := o.Check(); err != nil {
			return &usageError{err}
		}
		if o.Sign, err = sign.signer(cmd.Context()); err != nil {
			return err
		}
		if o.Referrer {
			return a.refer(cmd.Context(), args, o, *out)
		}
		to, err := parseTarget(args[1])
		if err != nil {
			return err
		}
		return a.convertTo(cmd.Context(), args[0], to, choice, o, facts, said, *out)
	}
	return c
}

// choiceFlags adds the flags that choose files of SRC.
func choiceFlags(c *cobra.Command, choice *convert.Choice) {
	const how = "; * is any text, also with slashes, and DIR/ is all below DIR (repeatable)"
	c.Flags().StringArrayVar(&choice.Include, "include", nil, "take only the files that match a `pattern`"+how)
	c.Flags().StringArrayVar(&choice.Exclude, "exclude", nil, "leave out the files that match a `pattern`"+how)
}

// refer writes the image that a node converts a model to beside it. args are the reference of the
// model, and optionally a tag for the image.
func (a *app) refer(ctx context.Context, args []string, o export.Options, out output) error {
	from, err := resolve.ParseRef(args[0])
	if err != nil || from.URL != "" {
		return usage("%s: --referrer is for a model in a registry", args[0])
	}
	to := target{ref: remote.Ref{Host: from.Host, Repository: from.Repository}}
	if len(args) > 1 {
		if to, err = parseTarget(args[1]); err != nil {
			return err
		}
		if to.ref.Name() != from.Name() {
			return usage("%s: --referrer writes into the repository of the model, %s", args[1], from.Name())
		}
	}
	return a.convertTo(ctx, args[0], to, convert.Choice{}, o, format.Facts{}, publication{}, out)
}

// convertTo converts one model.
func (a *app) convertTo(ctx context.Context, from string, t target, choice convert.Choice, o export.Options, facts format.Facts, said publication, out output) (err error) {
	start := time.Now()
	r, src, closeSrc, err := a.source(ctx, from, o.TempDir, choice)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeSrc()) }()
	if facts != (format.Facts{}) {
		if err := unpacked(src, from, facts); err != nil {
			return err
		}
	}
	src.Model = said.describe(src.Model)
	dst, closeDst, err := t.open(r.Upstream, o.DryRun)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeDst()) }()
	to := layout.Scheme + t.dir
	if dst != nil {
		to = dst.String()
	}
	p := a.progress(out, to)
	if o.DryRun {
		p = noProgress{}
	}
	o.Log, o.Progress = a.log(), follow(p)
	res, err := export.Run(ctx, src, dst, o)
	p.end()
	if err != nil {
		return fmt.Errorf("convert %s: %w", from, err)
	}
	a.reportLosses(res)
	if res.SignedBy != "" {
		a.note("signed by %s", res.SignedBy)
	}
	return a.converted(conversion{Source: from, Target: to, Origin: src.Model.Table.Origin, DryRun: o.DryRun, Result: res}, out, time.Since(start))
}

// reportLosses prints what is left out of a model, and what is wrong with its files.
func (a *app) reportLosses(res *export.Result) {
	for _, p := range res.Problems {
		a.warn("%s", p)
	}
	for _, l := range res.Losses {
		a.warn("not kept: %s", l)
	}
}

// A conversion is the result of a conversion in JSON, the last line.
type conversion struct {
	Status string           `json:"status"`
	Source string           `json:"source"`
	Target string           `json:"target"`
	Origin filetable.Origin `json:"origin"`
	DryRun bool             `json:"dryRun,omitempty"`
	*export.Result
}

// converted prints the result.
func (a *app) converted(c conversion, out output, elapsed time.Duration) error {
	res := c.Result
	switch {
	case out == outJSON && c.DryRun:
		c.Status = export.StatePlanned
		return a.printJSON(c)
	case out == outJSON:
		c.Status = string(wire.StatusSuccess)
		return json.NewEncoder(a.stdout).Encode(c)
	case a.quiet:
		_, err := fmt.Fprintln(a.stdout, res.Digest)
		return err
	case c.DryRun:
		return a.planned(c.Target, res)
	}
	_, err := fmt.Fprintf(a.stdout, "%s  %s  (%s)  %s\n%s\n", c.Target, size(res.Size), sentText(res), took(elapsed), res.Digest)
	return err
}

// sentText describes how the bytes of a model came to the target.
func sentText(res *export.Result) string {
	text := size(res.Sent) + " sent"
	if res.Present > 0 {
		text += ", " + size(res.Present) + " there already"
	}
	if res.Mounted > 0 {
		text += ", " + size(res.Mounted) + " taken over by the registry from the repository of SRC"
	}
	return text
}

// planned prints what would be sent.
func (a *app) planned(to string, res *export.Result) error {
	rows := [][]string{{"LAYER", "SIZE", "DIGEST", "STATE"}}
	for _, l := range res.Layers {
		d, n := l.Digest.String(), size(l.Size)
		if d == "" {
			d = "not known yet"
		}
		if l.Size < 0 {
			n = "?"
		}
		rows = append(rows, []string{l.Name, n, d, l.State})
	}
	if err := a.table(rows); err != nil {
		return err
	}
	d := res.Digest.String()
	if d == "" {
		d = "known when all is sent"
	}
	fmt.Fprintln(a.stdout)
	a.prose("  ", "%s as %s: %s of %s would be sent; digest: %s", to, res.Form, size(res.Sent), size(res.Size), d)
	return nil
}

// follow turns the progress of a conversion into events.
func follow(p progress) func([]store.Progress) {
	type mark struct {
		at   time.Time
		done int64
	}
	began, last := map[digest.Digest]mark{}, map[digest.Digest]store.Progress{}
	return func(all []store.Progress) {
		now := time.Now()
		for _, s := range all {
			if s == last[s.Blob] {
				continue
			}
			if s.State != last[s.Blob].State && s.State != string(wire.StatusWaiting) {
				began[s.Blob] = mark{now, s.Done}
			}
			last[s.Blob] = s
			e := wire.Event{Status: wire.EventStatus(s.State), Digest: s.Blob, Total: s.Total, Completed: s.Done, File: s.Name}
			if b, ok := began[s.Blob]; ok && now.Sub(b.at) > time.Second {
				e.Rate = int64(float64(s.Done-b.done) / now.Sub(b.at).Seconds())
			}
			p.event(e)
		}
	}
}

// resolver returns the resolver of names in this process, with the settings of the daemon. If name
// is the URL of an archive, its host is allowed, because the user gave it. The caller closes
// Upstream.
func (a *app) resolver(name string) (*resolve.Resolver, error) {
	cfg, err := a.load()
	if err != nil {
		return nil, err
	}
	o := upstream.Options(cfg, wire.ThisVersion().Agent(), upstream.Providers(cfg), a.log())
	o.Shared = remote.AnyHost
	if f, address := formats.All().OfURL(name); f != nil {
		if _, err := remote.ParseRef(string(f.Name) + "+" + address); err != nil {
			return nil, &usageError{err}
		}
		o.NamedURLs = append(o.NamedURLs, address)
	}
	client, err := remote.New(o)
	if err != nil {
		return nil, err
	}
	r := upstream.Resolver(cfg, client, a.log())
	r.Settings.TempDir = os.TempDir() // the daemon's directory is only for root
	return &r, nil
}

// source opens the chosen files of SRC, which must be a model. tempDir, if not empty, is the
// directory for copies of archives. The caller closes the source.
func (a *app) source(ctx context.Context, from, tempDir string, choice convert.Choice) (r *resolve.Resolver, src *resolve.Source, closeSrc func() error, err error) {
	if r, err = a.resolver(from); err != nil {
		return nil, nil, nil, err
	}
	if tempDir != "" {
		r.Settings.TempDir = tempDir
	}
	r.Titled = anyRepository
	if src, err = r.Open(a.waiting(ctx), from); err != nil {
		r.Upstream.Close()
		return nil, nil, nil, err
	}
	closeSrc = func() error {
		defer r.Upstream.Close()
		return src.Close()
	}
	if err = src.NotModel(); err == nil {
		err = src.Choose(ctx, choice)
	}
	if err != nil {
		return nil, nil, nil, errors.Join(err, closeSrc())
	}
	return r, src, closeSrc, nil
}

// anyRepository is Titled of a resolver for artifacts that the user named.
func anyRepository(string) bool { return true }

// A target is a DST: a directory and a tag, or a reference.
type target struct {
	dir, tag string
	ref      remote.Ref
}

// parseTarget parses DST.
func parseTarget(name string) (target, error) {
	if rest, ok := strings.CutPrefix(name, layout.Scheme); ok && !strings.HasPrefix(rest, "//") {
		dir, tag := layout.Split(rest)
		if dir == "" {
			return target{}, usage("%s: no directory", name)
		}
		if err := layout.CheckTag(tag); tag != "" && err != nil {
			return target{}, usage("%s: %w", name, err)
		}
		return target{dir: dir, tag: tag}, nil
	}
	ref, err := resolve.ParseRef(name)
	if f, _ := formats.All().OfURL(name); f != nil || err != nil || resolve.IsPath(name) {
		return target{}, usage("%.300q is not a target: write REGISTRY/REPOSITORY:TAG, oci:DIR, or with --as %s FILE%s", name,
			formats.All().Writers()[0].Name, formats.All().Writers()[0].Writer.Extension)
	}
	if ref.Digest != "" {
		return target{}, usage("%s: a target has a tag; its digest follows from what is sent", name)
	}
	return target{ref: ref}, nil
}

// open opens a target. It creates a missing layout; in a dry run, the target is nil.
func (t target) open(client *remote.Client, dryRun bool) (dst export.Target, closeDst func() error, err error) {
	if t.dir == "" {
		repo, err := client.Repository(t.ref, nil)
		return export.NewRegistry(repo, t.ref), func() error { return nil }, err
	}
	if dryRun && !layout.Is(t.dir) {
		return nil, func() error { return nil }, nil
	}
	l, err := layout.Create(t.dir, t.tag)
	if err != nil {
		return nil, nil, err
	}
	return l, l.Close, nil
}

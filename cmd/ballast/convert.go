package main

import (
	"context"
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/cmd/internal/upstream"
	"github.com/ballast-dev/ballast/convert/carton"
	"github.com/ballast-dev/ballast/convert/layout"
	"github.com/ballast-dev/ballast/convert/push"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/convert/signature/dsse"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"
)

// convertHelp is what "ballast convert --help" says.
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

In a directory, symbolic links are followed. Executable files get mode 0755, others 0644. Owners are not
kept.

Forms (--as):
  ballast    the image that nodes make of a model, with chunk digests: for each tensor, and for each
             4 MiB of other files (default). --compress zstd-seekable (a blob for each file) or
             zstd-chunked (tars) compresses the files in chunks
  modelpack  a ModelPack artifact with a raw layer for each file, or a tar with --tar. "oras pull"
             writes the files
  cnai       the same as CNAI, the former name of ModelPack
  image      an ordinary image of tars, for any runtime. With --compress zstd-chunked, Podman downloads
             single chunks, and other runtimes read ordinary zstd
  carton     a packed carton, a file. A carton is written as it was; of any other model, --runner and
             --runner-framework name the carton runner that loads its files

With these two flags, a directory that was never packed is a carton for the other forms too.`

func (a *app) convertCommand() *cobra.Command {
	var o push.Options
	var form, compress, key string
	var facts carton.Facts
	c := &cobra.Command{
		Use:   "convert SRC [DST]",
		Short: "write a model to a registry or an OCI layout, in one of several forms",
		Long:  convertHelp,
		Example: "  ballast convert registry.ollama.ai/library/llama3.2:1b ghcr.io/team/llama:1b --as modelpack\n" +
			"  ballast convert ghcr.io/team/model:v1 --referrer --sign team.key\n" +
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
	f := c.Flags()
	forms := append(push.Forms(), formCarton)
	f.StringVar(&form, "as", string(push.FormBallast), "form: "+strings.Join(forms, ", "))
	f.StringVar(&facts.Runner, "runner", "", "`name` of the carton runner that loads the files of SRC")
	f.StringVar(&facts.Framework, "runner-framework", "", "`version` of the framework that this runner needs, such as =1.12.1")
	f.BoolVar(&o.Tar, "tar", false, "for modelpack and cnai: a tar for each file instead of a raw layer")
	f.BoolVar(&o.NoChunks, "no-chunks", false, "for ballast: no chunk digests; the image is byte for byte what nodes make of SRC")
	f.StringVar(&compress, "compress", "", "for ballast and image: compress files in chunks: "+strings.Join(push.Compressions(), ", "))
	f.BoolVar(&o.Referrer, "referrer", false, "for ballast: write the image that nodes make of SRC beside it, as a referrer of its manifest")
	f.StringVar(&key, "sign", "", "sign with a private key, a `file` in PEM: the manifest as cosign does, the files as model-signing does")
	f.BoolVar(&o.DryRun, "dry-run", false, "show what would be sent")
	f.StringVar(&o.TempDir, "temp-dir", "", "directory for unpacking archives (default: $TMPDIR)")
	for name, values := range map[string][]string{"as": forms, "compress": push.Compressions()} {
		flagValues(c, name, values...)
	}
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if (facts.Runner == "") != (facts.Framework == "") {
			return usage("--runner and --runner-framework go together")
		}
		if form == formCarton {
			if plain := o; key != "" || compress != "" || plain.Tar || plain.NoChunks || plain.Referrer || plain.DryRun || len(args) < 2 {
				return usage("--as carton writes FILE.carton, and takes --runner, --runner-framework and --temp-dir only")
			}
			return a.pack(cmd.Context(), args[0], args[1], o, facts, *out)
		}
		var err error
		if o.Form, err = push.ParseForm(form); err != nil {
			return &usageError{err}
		}
		if o.Compress, err = push.ParseCompression(compress); err != nil {
			return &usageError{err}
		}
		chunkedImage := o.Form == push.FormImage && o.Compress == push.CompressChunked
		if o.Compress != push.CompressNone && (o.Form != push.FormBallast || o.NoChunks) && !chunkedImage {
			return usage("--compress goes with --as ballast, or zstd-chunked with --as image, and not with --no-chunks")
		}
		packed := o.Form == push.FormModelPack || o.Form == push.FormCNAI
		if o.Tar && !packed {
			return usage("--tar goes with --as modelpack and --as cnai")
		}
		if o.NoChunks && o.Form != push.FormBallast {
			return usage("--no-chunks goes with --as ballast")
		}
		if o.Sign, err = signingKey(key); err != nil {
			return err
		}
		if o.Referrer {
			if o.Form != push.FormBallast || o.Compress != push.CompressNone || facts != (carton.Facts{}) {
				return usage("--referrer goes with --as ballast, and not with --compress: it is what a node makes")
			}
			o.NoChunks = true
			return a.refer(cmd.Context(), args, o, *out)
		}
		if len(args) < 2 {
			return usage("no target given")
		}
		return a.convert(cmd.Context(), args[0], args[1], o, facts, *out)
	}
	return c
}

// signingKey reads a private key; nil without a file.
func signingKey(file string) (crypto.Signer, error) {
	if file == "" {
		return nil, nil
	}
	p, err := os.ReadFile(file)
	if err != nil {
		return nil, usage("--sign: %w", err)
	}
	key, err := dsse.ParsePrivateKey(p)
	if err != nil {
		return nil, usage("--sign %s: %w", file, err)
	}
	return key, nil
}

// refer writes what a node makes of a model beside it. args are its reference, and a tag for it if there is to
// be one.
func (a *app) refer(ctx context.Context, args []string, o push.Options, out output) error {
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
	return a.convertTo(ctx, args[0], to, o, carton.Facts{}, out)
}

// convert converts one model.
func (a *app) convert(ctx context.Context, from, to string, o push.Options, facts carton.Facts, out output) (err error) {
	t, err := parseTarget(to)
	if err != nil {
		return err
	}
	return a.convertTo(ctx, from, t, o, facts, out)
}

func (a *app) convertTo(ctx context.Context, from string, t target, o push.Options, facts carton.Facts, out output) (err error) {
	start := time.Now()
	r, src, closeSrc, err := a.source(ctx, from, o.TempDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeSrc()) }()
	if facts != (carton.Facts{}) {
		if err := unpackedCarton(src, from, facts); err != nil {
			return err
		}
	}
	dst, closeDst, err := t.open(r.Upstream, o.DryRun)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeDst()) }()
	p := a.progress(dst.String(), out)
	if o.DryRun {
		p = noProgress{}
	}
	o.Log, o.Progress = a.log(), follow(p)
	res, err := push.Convert(ctx, src, dst, o)
	p.end()
	if err != nil {
		return fmt.Errorf("convert %s: %w", from, err)
	}
	for _, l := range res.Losses {
		a.warn("not kept: %s", l)
	}
	return a.converted(conversion{Source: from, Target: dst.String(), Origin: src.Model.Table.Origin, DryRun: o.DryRun, Result: res}, out, time.Since(start))
}

// A conversion is the result of a conversion in JSON, the last line.
type conversion struct {
	Status string           `json:"status"`
	Source string           `json:"source"`
	Target string           `json:"target"`
	Origin filetable.Origin `json:"origin"`
	DryRun bool             `json:"dryRun,omitempty"`
	*push.Result
}

// converted writes the result.
func (a *app) converted(c conversion, out output, elapsed time.Duration) error {
	res := c.Result
	switch {
	case out == outJSON && c.DryRun:
		c.Status = push.StatePlanned
		return a.printJSON(c)
	case out == outJSON:
		c.Status = admin.StatusSuccess
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

// sentText says how the bytes of a model came to the target.
func sentText(res *push.Result) string {
	text := size(res.Sent) + " sent"
	if res.Present > 0 {
		text += ", " + size(res.Present) + " there already"
	}
	if res.Mounted > 0 {
		text += ", " + size(res.Mounted) + " taken over by the registry from the repository of SRC"
	}
	return text
}

// planned writes what would be sent.
func (a *app) planned(to string, res *push.Result) error {
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
	_, err := fmt.Fprintf(a.stdout, "\n%s as %s: %s of %s would be sent; digest: %s\n", to, res.Form, size(res.Sent), size(res.Size), d)
	return err
}

// follow turns what a conversion reports into events.
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
			last[s.Blob] = s
			if _, ok := began[s.Blob]; !ok && s.State != "waiting" {
				began[s.Blob] = mark{now, s.Done}
			}
			e := admin.Event{Status: s.State, Digest: s.Blob, Total: s.Total, Completed: s.Done, File: s.Name}
			if b, ok := began[s.Blob]; ok && now.Sub(b.at) > time.Second {
				e.Rate = int64(float64(s.Done-b.done) / now.Sub(b.at).Seconds())
			}
			p.event(e)
		}
	}
}

// resolver returns how names are resolved in this process, with the settings of the daemon. If name is the URL of
// a carton, its host may be anywhere: the person who wrote it means it. The caller closes Upstream.
func (a *app) resolver(name string) (*resolve.Resolver, error) {
	cfg, err := a.load()
	if err != nil {
		return nil, err
	}
	o := upstream.Options(cfg, admin.ThisVersion().Version, a.log())
	o.Shared = remote.AnyHost
	if address, ok := resolve.CartonAddress(name); ok {
		ref, err := remote.ParseRef("carton+" + address)
		if err != nil {
			return nil, &usageError{err}
		}
		o.NamedURLs = append(o.NamedURLs, ref.URL)
	}
	client, err := remote.New(o)
	if err != nil {
		return nil, err
	}
	r := upstream.Resolver(cfg, client, a.log())
	r.Carton.TempDir = os.TempDir() // that of the daemon is for root
	r.OllamaModels = config.OllamaModels
	return &r, nil
}

// source opens SRC, which has to be a model. tempDir is where archives are copied to, if not empty. The caller
// closes it.
func (a *app) source(ctx context.Context, from, tempDir string) (r *resolve.Resolver, src *resolve.Source, closeSrc func() error, err error) {
	if r, err = a.resolver(from); err != nil {
		return nil, nil, nil, err
	}
	if tempDir != "" {
		r.Carton.TempDir = tempDir
	}
	r.Titled = anyRepository
	if src, err = r.Open(ctx, from); err != nil {
		r.Upstream.Close()
		return nil, nil, nil, err
	}
	closeSrc = func() error {
		defer r.Upstream.Close()
		return src.Close()
	}
	if err := src.NotModel(); err != nil {
		return nil, nil, nil, errors.Join(err, closeSrc())
	}
	return r, src, closeSrc, nil
}

// anyRepository is Titled of a resolver for who means the artifact that he names.
func anyRepository(string) bool { return true }

// A target is a DST: a directory and a tag, or a reference.
type target struct {
	dir, tag string
	ref      remote.Ref
}

// parseTarget parses DST.
func parseTarget(name string) (target, error) {
	if rest, ok := strings.CutPrefix(name, resolve.LayoutScheme); ok && !strings.HasPrefix(rest, "//") {
		dir, tag := resolve.SplitLayout(rest)
		if dir == "" {
			return target{}, usage("%s: no directory", name)
		}
		return target{dir: dir, tag: tag}, nil
	}
	if _, isURL := resolve.CartonAddress(name); isURL || resolve.IsPath(name) {
		return target{}, usage("%s: a target is a reference or oci:DIR", name)
	}
	ref, err := resolve.ParseRef(name)
	if err != nil {
		return target{}, &usageError{err}
	}
	if ref.Digest != "" {
		return target{}, usage("%s: a target has a tag; its digest follows from what is sent", name)
	}
	return target{ref: ref}, nil
}

// open opens a target, and makes a layout that is not there, but not for a dry run.
func (t target) open(client *remote.Client, dryRun bool) (dst push.Target, closeDst func() error, err error) {
	if t.dir == "" {
		repo, err := client.Repository(t.ref, nil)
		return push.NewRegistry(repo, t.ref), func() error { return nil }, err
	}
	if dryRun && !layout.Is(t.dir) {
		return push.Nowhere(resolve.LayoutScheme + t.dir), func() error { return nil }, nil
	}
	l, err := layout.Create(t.dir, t.tag)
	if err != nil {
		return nil, nil, err
	}
	return l, l.Close, nil
}

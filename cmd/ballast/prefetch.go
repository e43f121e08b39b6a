package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/ballast-dev/ballast/convert/layout"
	"github.com/ballast-dev/ballast/convert/ollama/localstore"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"
)

func (a *app) prefetchCommand() *cobra.Command {
	c, r := a.fetchCommand(&cobra.Command{
		Use:   "prefetch REF|DIGEST...",
		Short: "download models ahead of their use, verify and pin them",
		Long: `Download models ahead of their use, verify and pin them. A model that is already complete is only pinned, and
an unfinished download is resumed. With the digest of a model that this node knows, such as one that is mounted and
not complete, the rest of that model is downloaded, and no registry is asked for a tag.

ballastd does the work, downloads several models at the same time, and continues if you interrupt this command;
with --detach, the command returns at once. References name their registry:
registry.ollama.ai/library/llama3.2:1b, docker.io/ai/smollm2, ghcr.io/team/model:v1. The URL of a model's page
at huggingface.co or ollama.com stands for its reference. A list has one of these per line; empty lines and
lines that start with # are ignored.`,
		Example: "  ballast prefetch registry.ollama.ai/library/llama3.2:1b\n  ballast prefetch --file models.txt --ttl 3d",
	})
	pinFlags(c, &r.TTL, &r.NoPin)
	return c
}

// pullCommand returns "pull", which is "prefetch --no-pin".
func (a *app) pullCommand() *cobra.Command {
	c, r := a.fetchCommand(&cobra.Command{
		Use:     "pull REF|DIGEST...",
		Short:   "download and verify models, without pins",
		Long:    "Download and verify models, exactly as \"ballast prefetch --no-pin\" does: they are removed when space is needed.",
		Example: "  ballast pull hf:Qwen/Qwen3-0.6B-GGUF",
	})
	r.NoPin = true
	return c
}

// fetchCommand completes a command that downloads models as r says.
func (a *app) fetchCommand(c *cobra.Command) (_ *cobra.Command, r *wire.PrefetchRequest) {
	var list string
	var refer, detach, dryRun bool
	r = &wire.PrefetchRequest{}
	c.ValidArgsFunction = a.completes(0, modelRefs)
	out := outputFlag(c)
	listFlag(c, &list)
	detachFlag(c, &detach)
	c.Flags().BoolVar(&dryRun, "dry-run", false, "show what would be downloaded")
	c.Flags().Func("limit-rate", "`size` a second, such as 50MiB, that the downloads may have together", func(s string) error {
		n, err := config.ParseUnitSize(s)
		r.Rate = int64(n)
		return err
	})
	c.Flags().BoolVar(&refer, "referrer", false, "then write the converted image of each model beside it, as \"ballast convert REF --referrer\" does")
	c.RunE = a.asks(func(cmd *cobra.Command, cl *wire.Client, args []string) error {
		refs, err := references(cmd, args, list, parseWanted)
		if err != nil {
			return err
		}
		switch {
		case detach && refer:
			return usage("--referrer needs the models, and --detach does not wait for them")
		case refer && slices.ContainsFunc(refs, isDigest):
			return usage("--referrer is for references of models in a registry")
		case dryRun:
			return a.planFetches(cmd.Context(), cl, refs, *out)
		}
		p := &prefetching{app: a, client: cl, r: *r, out: *out, detach: detach}
		if err := p.run(cmd.Context(), refs); err != nil || !refer {
			return err
		}
		for _, ref := range refs {
			o := export.Options{Form: export.FormBallast, NoChunks: true, Referrer: true}
			if err := a.refer(cmd.Context(), []string{ref}, o, *out); err != nil {
				return err
			}
		}
		return nil
	})
	return c, r
}

// listFlag adds --file to a command that takes references.
func listFlag(c *cobra.Command, list *string) {
	c.Flags().StringVar(list, "file", "", "read references from a file, - for stdin")
}

// detachFlag adds --detach to a command.
func detachFlag(c *cobra.Command, detach *bool) {
	c.Flags().BoolVarP(detach, "detach", "d", false, "return as soon as ballastd has started; \"ballast status\" shows the progress")
}

// A fetchPlan is what a download would do, in JSON.
type fetchPlan struct {
	Ref    string          `json:"ref"`
	Digest digest.Digest   `json:"digest"`
	Size   int64           `json:"size"`
	State  wire.ImageState `json:"state"` // on this node; absent if it is not known
}

// planFetches prints what downloads would do.
func (a *app) planFetches(ctx context.Context, cl *wire.Client, refs []string, out output) error {
	plans, digests, rows := []fetchPlan{}, []string{}, [][]string{{"REFERENCE", "DIGEST", "SIZE", "STATE"}}
	failed := each(a, refs, func(ref string) error {
		p, err := a.planFetch(ctx, cl, ref)
		if err != nil {
			return wire.About(ref, err)
		}
		plans, digests = append(plans, p), append(digests, p.Digest.String())
		rows = append(rows, []string{ref, shortDigest(p.Digest.String()), size(p.Size), string(p.State)})
		return nil
	})
	return cmp.Or(a.show(out, plans, digests, rows), failed)
}

// planFetch returns what the download of a reference or a digest would do.
func (a *app) planFetch(ctx context.Context, cl *wire.Client, ref string) (fetchPlan, error) {
	id := ref
	p := fetchPlan{Ref: ref, State: wire.StateAbsent}
	if !isDigest(ref) {
		d, err := a.remoteDetail(ctx, ref, convert.Choice{})
		if err != nil {
			return p, err
		}
		p.Digest, p.Size, id = d.Manifest, d.Size, d.Manifest.String()
	}
	here, err := cl.Image(ctx, id)
	if err == nil {
		p.Digest, p.Size, p.State = here.ID(), here.Size, here.State
	} else if !isDigest(ref) && errdefs.IsNotFound(err) {
		err = nil
	}
	return p, err
}

// references returns the references of the command line and of a list, as parse reads them.
func references[T any](cmd *cobra.Command, args []string, list string, parse func(string) (T, error)) (refs []T, err error) {
	for _, s := range args {
		ref, err := parse(s)
		if err != nil {
			return nil, &usageError{err}
		}
		refs = append(refs, ref)
	}
	if list != "" {
		listed, err := readList(cmd.InOrStdin(), list, parse)
		if err != nil {
			return nil, err
		}
		refs = append(refs, listed...)
	}
	if len(refs) == 0 {
		return nil, usage("no model given")
	}
	return refs, nil
}

// readList reads the references of the file called name, or of stdin if that is "-".
func readList[T any](stdin io.Reader, name string, parse func(string) (T, error)) (refs []T, err error) {
	in := stdin
	if name == "-" {
		name = "stdin"
	} else {
		f, err := os.Open(name)
		if err != nil {
			return nil, usage("--file: %w", err)
		}
		defer f.Close()
		in = f
	}
	lines := bufio.NewScanner(in)
	n := 0
	for lines.Scan() {
		n++
		s := strings.TrimSpace(lines.Text())
		if s == "" || strings.HasPrefix(s, "#") {
			continue
		}
		ref, err := parse(s)
		if err != nil {
			return nil, usage("%s:%d: %w", name, n, err)
		}
		refs = append(refs, ref)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s:%d: %w", name, n+1, err)
	}
	return refs, nil
}

// parseWanted returns the reference of a model in a registry in its normal form, or a digest.
func parseWanted(s string) (string, error) {
	if isDigest(s) {
		return s, nil
	}
	ref, err := parseRemote(s)
	return ref.String(), err
}

// isDigest reports whether a name is a digest, or the beginning of one.
func isDigest(s string) bool {
	n, err := modelname.Parse(s)
	return err == nil && !n.IsRef()
}

// parseRemote parses the reference of a model in a registry. The error for a model of this machine says
// what takes it.
func parseRemote(s string) (remote.Ref, error) {
	ref, err := resolve.ParseRef(s)
	model, ofOllama := strings.CutPrefix(s, localstore.Scheme)
	isLayout := strings.HasPrefix(s, layout.Scheme) && !strings.HasPrefix(s, layout.Scheme+"//")
	switch {
	case ofOllama && !resolve.IsPath(model):
		return ref, fmt.Errorf("%s is on this machine: use \"ballast import ollama %s\": %w", s, model, errdefs.ErrInvalidArgument)
	case ofOllama, isLayout, err != nil && resolve.IsPath(s):
		return ref, fmt.Errorf("%s is on this machine: publish it first, with \"ballast convert %s REGISTRY/REPOSITORY:TAG\": %w", s, s, errdefs.ErrInvalidArgument)
	}
	return ref, err
}

// A prefetching is one run of "prefetch".
type prefetching struct {
	*app
	client *wire.Client
	r      wire.PrefetchRequest // except Ref
	out    output
	detach bool

	mu    sync.Mutex // held while something is shown
	shown progress
	jobs  map[string]bool // references that the daemon has; true while it works on them
}

// run requests all models at once; the daemon downloads several at the same time. It continues
// after an error and returns that of the first model with an error.
func (p *prefetching) run(ctx context.Context, refs []string) error {
	p.shown, p.jobs = p.progress(p.out, refs...), map[string]bool{}
	if len(refs) > 1 {
		p.r.List = rand.Text()
	}
	errs := make([]error, len(refs))
	var all sync.WaitGroup
	for i, ref := range refs {
		all.Go(func() { errs[i] = p.one(ctx, ref) })
	}
	all.Wait()
	p.shown.end()
	if ctx.Err() != nil {
		p.left(refs)
		return ctx.Err()
	}
	return cmp.Or(errs...)
}

// left prints what happens to the models after Ctrl-C.
func (p *prefetching) left(refs []string) {
	var running, unsure []string
	for _, ref := range refs {
		if works, known := p.jobs[ref]; works {
			running = append(running, ref)
		} else if !known {
			unsure = append(unsure, ref)
		}
	}
	if len(running) > 0 {
		p.detached(running...)
	}
	if len(unsure) > 0 {
		p.warn("interrupted before ballastd confirmed %s; run the command again", strings.Join(unsure, " "))
	}
}

// one downloads a model and prints the result.
func (p *prefetching) one(ctx context.Context, ref string) error {
	following, leave := context.WithCancel(ctx)
	defer leave()
	r := p.r
	r.Ref = ref
	start := time.Now()
	im, err := p.client.Prefetch(following, r, func(e wire.Event) {
		e.Ref = ref
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.detach { // it has started
			leave()
			return
		}
		p.jobs[ref] = true
		p.shown.event(e)
	})
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.jobs[ref] = false
	switch {
	case p.detach && errors.Is(err, context.Canceled):
		p.shown.done(ref, func() { p.begun(ref) })
		return nil
	case err != nil:
		err = wire.About(ref, err)
		p.shown.done(ref, func() {
			p.complain(err)
			if p.out == outJSON {
				p.shown.event(wire.Event{Status: wire.StatusError, Ref: ref, Error: wire.Wrap(err)})
			}
		})
		return &saidError{err}
	}
	p.shown.done(ref, func() { p.fetched(ref, im, time.Since(start)) })
	return nil
}

// begun prints that the daemon downloads a model in the background.
func (p *prefetching) begun(ref string) {
	switch {
	case p.out == outJSON:
		p.shown.event(wire.Event{Status: wire.StatusStarted, Ref: ref})
	case p.quiet:
	default:
		fmt.Fprintf(p.stdout, "%s  started; \"ballast status\" shows its progress\n", ref)
	}
}

// fetched prints that a model is complete.
func (p *prefetching) fetched(ref string, im wire.Record, dur time.Duration) {
	p.noteOrigin(ref, im)
	switch {
	case p.out == outJSON:
		p.shown.event(wire.Event{Status: wire.StatusSuccess, Ref: ref, Image: &im})
	case p.quiet:
		fmt.Fprintln(p.stdout, im.Manifest)
	default:
		fmt.Fprintf(p.stdout, "%s  %s  %s  %s\n", ref, shortDigest(im.Manifest.String()), size(im.Size), took(dur))
	}
}

// noteOrigin prints a note if ref has the digest of a model in its registry: the model is now on
// the node, but only pods can use that digest, and not for every model.
func (a *app) noteOrigin(ref string, im wire.Record) {
	name, d, ok := strings.Cut(ref, "@")
	if !ok || d != im.Origin.Digest.String() || d == im.Manifest.String() {
		return
	}
	a.warn("the digest in %s is that of the model as its registry has it, which works in pods only, if at all; the converted one always does: %s@%s",
		ref, name, im.Manifest)
}

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/convert/push"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/spf13/cobra"
)

func (a *app) prefetchCommand() *cobra.Command {
	var list string
	var refer bool
	var r admin.PrefetchRequest
	c := &cobra.Command{
		Use:   "prefetch REF...",
		Short: "download models ahead of their use, verify and pin them",
		Long: `Download models ahead of their use, verify and pin them. A model that is already complete is only pinned, and
an unfinished download is resumed.

ballastd does the work, and continues if you interrupt this command. References name their registry:
registry.ollama.ai/library/llama3.2:1b, docker.io/ai/smollm2, ghcr.io/team/model:v1. A list has one reference
per line; empty lines and lines that start with # are ignored.`,
		Example: "  ballast prefetch registry.ollama.ai/library/llama3.2:1b\n  ballast prefetch -f models.txt --ttl 24h",
	}
	c.ValidArgsFunction = a.completes(0, modelRefs)
	out := outputFlag(c)
	c.Flags().StringVarP(&list, "file", "f", "", "read references from a file, - for stdin")
	c.Flags().DurationVar(&r.TTL, "ttl", 0, "remove the pin after this time (default: keep it)")
	c.Flags().BoolVar(&r.NoPin, "no-pin", false, "do not pin the models; they are removed when space is needed")
	c.Flags().BoolVar(&refer, "referrer", false, "then write the converted image of each model beside it, as \"ballast convert REF --referrer\" does")
	c.RunE = a.asks(func(cmd *cobra.Command, cl *admin.Client, args []string) error {
		refs, err := a.references(cmd, args, list)
		if err != nil {
			return err
		}
		if r.TTL < 0 {
			return usage("--ttl %v is negative", r.TTL)
		}
		if err := a.prefetch(cmd.Context(), cl, refs, r, *out); err != nil || !refer {
			return err
		}
		for _, ref := range refs {
			o := push.Options{Form: push.FormBallast, NoChunks: true, Referrer: true}
			if err := a.refer(cmd.Context(), []string{ref}, o, *out); err != nil {
				return err
			}
		}
		return nil
	})
	return c
}

// references returns the references of the command line and of a list, checked.
func (a *app) references(cmd *cobra.Command, args []string, list string) ([]string, error) {
	var refs []string
	for _, s := range args {
		ref, err := resolve.ParseRef(s)
		if err != nil {
			return nil, &usageError{err}
		}
		refs = append(refs, ref.String())
	}
	if list != "" {
		listed, err := readList(cmd.InOrStdin(), list)
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
func readList(stdin io.Reader, name string) ([]string, error) {
	in := stdin
	if name == "-" {
		name = "stdin"
	} else {
		f, err := os.Open(name)
		if err != nil {
			return nil, usage("-f: %w", err)
		}
		defer f.Close()
		in = f
	}
	var refs []string
	lines := bufio.NewScanner(in)
	n := 0
	for lines.Scan() {
		n++
		s := strings.TrimSpace(lines.Text())
		if s == "" || strings.HasPrefix(s, "#") {
			continue
		}
		ref, err := resolve.ParseRef(s)
		if err != nil {
			return nil, usage("%s:%d: %w", name, n, err)
		}
		refs = append(refs, ref.String())
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s:%d: %w", name, n+1, err)
	}
	return refs, nil
}

// prefetch fetches one model after the other; each has all connections to itself. It goes on
// after an error and returns the first.
func (a *app) prefetch(ctx context.Context, cl *admin.Client, refs []string, r admin.PrefetchRequest, out output) error {
	var first error
	for _, ref := range refs {
		r.Ref = ref
		p := a.progress(ref, out)
		start := time.Now()
		im, err := cl.Prefetch(ctx, r, p.event)
		p.end()
		if ctx.Err() != nil {
			fmt.Fprintf(a.stderr, "ballast: detached from %s; ballastd continues. Run the command again to follow the progress.\n", ref)
			return ctx.Err()
		}
		if err != nil {
			err = admin.About(ref, err)
			a.complain(err)
			if first == nil {
				first = &saidError{err}
			}
			if out == outJSON {
				p.event(admin.Event{Status: admin.StatusError, Ref: ref, Error: admin.Wrap(err)})
			}
			continue
		}
		a.noteOrigin(ref, im)
		switch {
		case out == outJSON:
			p.event(admin.Event{Status: admin.StatusSuccess, Ref: ref, Image: &im})
		case a.quiet:
			fmt.Fprintln(a.stdout, im.Manifest)
		default:
			fmt.Fprintf(a.stdout, "%s  %s  %s  %s\n", ref, shortDigest(im.Manifest.String()), size(im.Size), took(time.Since(start)))
		}
	}
	return first
}

// noteOrigin says so if ref has the digest of a model as its registry has it: the model is on the node now, but
// only pods can use that digest, and not of every model.
func (a *app) noteOrigin(ref string, im store.Image) {
	name, d, ok := strings.Cut(ref, "@")
	if !ok || d != im.Origin.Digest.String() || d == im.Manifest.String() {
		return
	}
	fmt.Fprintf(a.stderr, "ballast: the digest in %s is that of the model as its registry has it, which works in pods only, if at all; the converted one always does: %s@%s\n",
		ref, name, im.Manifest)
}

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/spf13/cobra"
)

func (a *app) prefetchCommand() *cobra.Command {
	var list string
	var r admin.PrefetchRequest
	c := &cobra.Command{
		Use:   "prefetch REF...",
		Short: "fetch models ahead of their use, verify and pin them",
		Long: `Fetch models ahead of their use, verify and pin them. A model that is there already is
pinned and nothing else; what was begun is gone on with.

ballastd does the work and goes on if this command is interrupted. References name their
registry: registry.ollama.ai/library/llama3.2:1b, docker.io/ai/smollm2, ghcr.io/team/model:v1.
A list has one reference a line; empty lines and lines that begin with # do not count.`,
		Example: "  ballast prefetch registry.ollama.ai/library/llama3.2:1b\n  ballast prefetch -f models.txt --ttl 24h",
	}
	out := outputFlag(c)
	c.Flags().StringVarP(&list, "file", "f", "", "read references from a file, - for stdin")
	c.Flags().DurationVar(&r.TTL, "ttl", 0, "how long the pin holds (default: until it is removed)")
	c.Flags().BoolVar(&r.NoPin, "no-pin", false, "leave the models without a pin; they go when space runs short")
	c.RunE = a.asks(func(cmd *cobra.Command, cl *admin.Client, args []string) error {
		refs, err := a.references(cmd, args, list)
		if err != nil {
			return err
		}
		if r.TTL < 0 {
			return usage("--ttl %v is negative", r.TTL)
		}
		return a.prefetch(cmd.Context(), cl, refs, r, *out)
	})
	return c
}

// references returns the references of the command line and of a list, checked.
func (a *app) references(cmd *cobra.Command, args []string, list string) ([]string, error) {
	if list != "" {
		in := cmd.InOrStdin()
		if list != "-" {
			f, err := os.Open(list)
			if err != nil {
				return nil, err
			}
			defer f.Close()
			in = f
		}
		lines := bufio.NewScanner(in)
		for lines.Scan() {
			if s := strings.TrimSpace(lines.Text()); s != "" && !strings.HasPrefix(s, "#") {
				args = append(args, s)
			}
		}
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("list %s: %w", list, err)
		}
	}
	if len(args) == 0 {
		return nil, usage("no reference given")
	}
	for i, s := range args {
		ref, err := admin.ParseRef(s)
		if err != nil {
			return nil, &usageError{err}
		}
		args[i] = ref.String()
	}
	return args, nil
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
			fmt.Fprintf(a.stderr, "ballast: detached from %s; ballastd goes on. The same command follows it again.\n", ref)
			return ctx.Err()
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", ref, err)
			if first == nil {
				first = err
			} else {
				fmt.Fprintf(a.stderr, "ballast: %v\n", first)
				first = errors.Join(errSilent, err)
			}
			if out == outJSON {
				p.event(admin.Event{Status: admin.StatusError, Ref: ref, Error: admin.Wrap(err)})
			}
			continue
		}
		switch {
		case out == outJSON:
			p.event(admin.Event{Status: admin.StatusSuccess, Ref: ref, Image: &im})
		case a.quiet:
			fmt.Fprintln(a.stdout, im.Manifest)
		default:
			fmt.Fprintf(a.stdout, "%s  %s  %s  %s\n", ref, im.Manifest, size(im.Size), time.Since(start).Round(time.Millisecond))
		}
	}
	return first
}

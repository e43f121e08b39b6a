package main

import (
	"context"
	"fmt"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/wire"
	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"
)

// A hydration has the flags of "hydrate".
type hydration struct {
	names         []string
	detach        bool
	pause, resume bool
	out           output
}

func (a *app) hydrateCommand() *cobra.Command {
	var h hydration
	c := &cobra.Command{
		Use:   "hydrate REF|DIGEST...",
		Short: "download the rest of models that are not complete",
		Long: `Download the rest of models that this node knows and that are not complete: mounted models, and models of
which something is missing. With --detach, the download runs in the background: reads and other work that
somebody waits for go first. Nothing is pinned.

--pause stops background downloads of all models until --resume or the next start of ballastd. Reads,
prefetches and pulls continue.`,
		Example:           "  ballast hydrate registry.ollama.ai/library/llama3.2:1b\n  ballast hydrate --pause",
		ValidArgsFunction: a.completes(0, modelRefs),
	}
	out := outputFlag(c)
	f := c.Flags()
	detachFlag(c, &h.detach)
	f.BoolVar(&h.pause, "pause", false, "pause background downloads")
	f.BoolVar(&h.resume, "resume", false, "resume background downloads")
	c.RunE = a.asks(func(cmd *cobra.Command, cl *wire.Client, args []string) error {
		h.names, h.out = args, *out
		if err := h.check(); err != nil {
			return err
		}
		if h.pause || h.resume {
			return a.pause(cmd.Context(), cl, h)
		}
		return each(a, args, func(name string) error { return a.hydrate(cmd.Context(), cl, name, h) })
	})
	return c
}

// check returns a usageError for flags that contradict each other.
func (h *hydration) check() error {
	switch turn := h.pause || h.resume; {
	case h.pause && h.resume:
		return usage("--pause and --resume cannot be used together")
	case turn && h.detach:
		return usage("--detach needs models, and cannot be used with --pause or --resume")
	case turn && len(h.names) > 0:
		return usage("--pause and --resume apply to all models; do not name any")
	case !turn && len(h.names) == 0:
		return usage("no model given")
	}
	return names(h.names)
}

// pause pauses or resumes background downloads.
func (a *app) pause(ctx context.Context, cl *wire.Client, h hydration) error {
	paused, err := cl.Pause(ctx, h.pause)
	switch {
	case err != nil:
		return err
	case h.out == outJSON:
		return a.printJSON(wire.PauseRequest{Paused: paused})
	case a.quiet:
	case paused:
		fmt.Fprintln(a.stdout, "paused: no background downloads; reads continue")
	default:
		fmt.Fprintln(a.stdout, "resumed")
	}
	return nil
}

// hydrate downloads the rest of one model.
func (a *app) hydrate(ctx context.Context, cl *wire.Client, name string, h hydration) error {
	var p progress = noProgress{}
	if !h.detach || h.out == outJSON {
		p = a.progress(h.out, name)
	}
	start := time.Now()
	last, err := cl.Hydrate(ctx, wire.HydrateRequest{Name: name, Wait: !h.detach}, p.event)
	p.end()
	if ctx.Err() != nil {
		a.detached(name)
		return ctx.Err()
	}
	if err != nil {
		if h.out == outJSON {
			p.event(wire.Event{Status: wire.StatusError, Ref: name, Error: wire.Wrap(err)})
		}
		return wire.About(name, err)
	}
	switch {
	case h.out == outJSON:
		p.event(last)
	case a.quiet:
		fmt.Fprintln(a.stdout, known(last))
	case last.Status == wire.StatusStarted:
		fmt.Fprintf(a.stdout, "%s  %s  started; \"ballast ls\" shows the progress\n", printable(last.Ref), known(last))
	case last.Status == wire.StatusPaused:
		fmt.Fprintf(a.stdout, "%s  %s  paused; starts after \"ballast hydrate --resume\"\n", printable(last.Ref), known(last))
	default:
		fmt.Fprintf(a.stdout, "%s  %s  %s  %s\n", printable(last.Ref), shortDigest(known(last).String()), size(last.Image.Size), took(time.Since(start)))
	}
	return nil
}

// known returns the digest by which the image of an event is known.
func known(e wire.Event) digest.Digest {
	return e.Image.ID()
}

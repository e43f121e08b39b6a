package push

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ballast-dev/ballast/convert/headers"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
)

// pushTries is how often a blob is sent.
const pushTries = 4

// progressEvery is the time between two calls of Options.Progress.
const progressEvery = 200 * time.Millisecond

// A layer is bytes that are sent.
type layer struct {
	name string
	desc ocispec.Descriptor // without a digest, if that is not known; size -1 likewise
	open Opener

	// diffID is the digest of the tar that desc is compressed from. Empty: it is not compressed.
	diffID digest.Digest

	fromBlob bool             // a blob of the source, which can be mounted
	chunks   *passage         // of the last read, if they are wanted
	sniffer  *headers.Sniffer // of the last read, if the layer is a file that can have a header

	// prepare, if not nil, makes what is sent, after which desc and open say what it is. release is
	// set by it, and called when it is sent.
	prepare func(context.Context) error
	release func() error
	total   int64 // bytes that prepare reads

	done  atomic.Int64 // bytes
	state atomic.Value // string

	same *layer // an earlier layer with the same digest, which is sent instead
}

// say sets the state of a layer.
func (l *layer) say(state string) { l.state.Store(state) }

func (l *layer) said() string {
	if l.same != nil {
		return l.same.said()
	}
	s, _ := l.state.Load().(string)
	return s
}

// counted opens the bytes of a layer and counts what is read.
func (l *layer) counted(ctx context.Context) (io.ReadCloser, error) {
	r, err := l.open(ctx)
	if err != nil || l.prepare != nil { // what is sent was counted when it was made
		return r, err
	}
	l.done.Store(0)
	return reading(&counter{r, &l.done}, r), nil
}

// reading reads r and closes c.
func reading(r io.Reader, c io.Closer) io.ReadCloser {
	return struct {
		io.Reader
		io.Closer
	}{r, c}
}

// through returns an opener whose bytes are read by way of what with returns.
func through(open Opener, with func(io.Reader) io.Reader) Opener {
	return func(ctx context.Context) (io.ReadCloser, error) {
		r, err := open(ctx)
		if err != nil {
			return nil, err
		}
		return reading(with(r), r), nil
	}
}

// adding returns an opener whose bytes are added to what is done of a layer.
func (l *layer) adding(open Opener) Opener {
	return through(open, func(r io.Reader) io.Reader { return &counter{r, &l.done} })
}

type counter struct {
	r io.Reader
	n *atomic.Int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// run sends a plan, or says what would be sent.
func (c *conversion) run(ctx context.Context, p *plan) (*Result, error) {
	first := map[digest.Digest]*layer{}
	for _, l := range p.layers {
		l.say(stateWaiting)
		if d := l.desc.Digest; d != "" && first[d] != nil {
			l.same = first[d]
		} else if d != "" {
			first[d] = l
		}
	}
	var err error
	if c.o.DryRun {
		err = c.look(ctx, p.layers)
	} else {
		err = c.send(ctx, p.layers)
	}
	if err != nil {
		return nil, err
	}
	res := c.result(p.layers)
	for _, l := range p.layers {
		if l.desc.Digest == "" || l.chunks != nil && c.o.DryRun {
			return res, nil // a dry run that can not know more
		}
	}
	docs, err := p.documents()
	if err != nil {
		return nil, err
	}
	res.Manifest, res.MediaType, res.Digest = docs.manifest, docs.mediaType, digest.FromBytes(docs.manifest)
	if c.o.DryRun {
		return res, nil
	}
	for _, b := range docs.blobs {
		d := digest.FromBytes(b)
		if err := c.put(ctx, &layer{desc: ocispec.Descriptor{Digest: d, Size: int64(len(b))}, open: opener(b)}); err != nil {
			return nil, err
		}
	}
	if c.o.Sign != nil {
		if err := c.sign(ctx, p, docs); err != nil {
			return nil, err
		}
		res.Losses = c.losses
	}
	if err := c.dst.PutManifest(ctx, docs.mediaType, docs.manifest); err != nil || !c.o.Referrer {
		return res, err
	}
	res.Referrer, err = c.refer(ctx, docs)
	return res, err
}

// refer writes the index by which the converted image refers to its origin. The image itself stays what nodes
// make of it, byte for byte.
func (c *conversion) refer(ctx context.Context, docs documents) (digest.Digest, error) {
	desc, p, err := image.Referrer(c.src.Model.Table.Origin, c.src.Model.Documents.Manifest, docs.manifest)
	if err != nil {
		return "", err
	}
	return desc.Digest, c.dst.PutReferrer(ctx, c.src.Model.Table.Origin.Digest, desc, p)
}

// look finds out which layers the target has.
func (c *conversion) look(ctx context.Context, layers []*layer) error {
	for _, l := range layers {
		l.say(StatePlanned)
		if l.desc.Digest == "" || l.same != nil {
			continue
		}
		has, err := c.dst.Has(ctx, l.desc.Digest, l.desc.Size)
		if err != nil {
			return err
		}
		if has {
			l.say(StatePresent)
		}
	}
	return nil
}

// send sends all layers.
func (c *conversion) send(ctx context.Context, layers []*layer) error {
	stop := make(chan struct{})
	var report sync.WaitGroup
	report.Go(func() {
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				c.o.Progress(progressOf(layers))
			case <-stop:
				c.o.Progress(progressOf(layers))
				return
			}
		}
	})
	defer report.Wait()
	defer close(stop)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(c.o.Parallel)
	for _, l := range layers {
		if l.same != nil {
			continue
		}
		g.Go(func() error {
			send := c.put
			if l.prepare != nil {
				send = c.make
			}
			if err := send(ctx, l); err != nil {
				return fmt.Errorf("%s: %w", l.name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// make makes what is sent of a layer, and sends it.
func (c *conversion) make(ctx context.Context, l *layer) (err error) {
	l.say(stateReading)
	if err := c.again(ctx, func() error { return l.prepare(ctx) }); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.release()) }()
	return c.put(ctx, l)
}

// put brings one layer to the target, if it does not have it.
func (c *conversion) put(ctx context.Context, l *layer) error {
	if l.desc.Digest == "" {
		l.say(stateUploading)
		return c.again(ctx, func() error {
			d, err := c.dst.PutStream(ctx, l.desc.Size, l.counted)
			if err == nil {
				l.desc.Digest = d
				l.say(StateUploaded)
			}
			return err
		})
	}
	state, err := c.have(ctx, l)
	if err != nil {
		return err
	}
	if state != "" && l.chunks != nil {
		l.say(stateReading)
		if err := l.read(ctx); err != nil {
			return err
		}
	}
	if state != "" {
		l.done.Store(l.bytes())
		l.say(state)
		return nil
	}
	l.say(stateUploading)
	err = c.again(ctx, func() error { return c.dst.Put(ctx, l.desc.Digest, l.desc.Size, l.counted) })
	if err == nil {
		l.done.Store(l.bytes())
		l.say(StateUploaded)
	}
	return err
}

// have returns how the target came to have a layer, or "" if it does not.
func (c *conversion) have(ctx context.Context, l *layer) (state string, err error) {
	err = c.again(ctx, func() error {
		has, err := c.dst.Has(ctx, l.desc.Digest, l.desc.Size)
		if has {
			state = StatePresent
		}
		return err
	})
	if err != nil || state != "" || !l.fromBlob || c.src.Repository == "" {
		return state, err
	}
	mounted, err := c.dst.Mount(ctx, l.desc.Digest, c.src.Host, c.src.Repository)
	if err == nil && mounted {
		return StateMounted, nil
	}
	return "", nil // pushing says what is wrong
}

// read reads a layer that is not sent.
func (l *layer) read(ctx context.Context) error {
	r, err := l.counted(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.CopyBuffer(io.Discard, r, make([]byte, bufferSize))
	return err
}

// again calls f until it returns nil, an error that is final, or too many others.
func (c *conversion) again(ctx context.Context, f func() error) error {
	for try := 1; ; try++ {
		err := f()
		if err == nil || !errdefs.IsUnavailable(err) || final(err) || try == pushTries || ctx.Err() != nil {
			return err
		}
		if waitErr := pause(ctx, err, readPause<<(try-1)); waitErr != nil {
			return err
		}
	}
}

// progressOf returns how far layers are.
func progressOf(layers []*layer) []store.Progress {
	var out []store.Progress
	for _, l := range layers {
		if l.same != nil {
			continue
		}
		p := store.Progress{Blob: l.key(), Name: l.name, Total: l.bytes(), Done: l.done.Load(), State: l.said()}
		switch p.State {
		case StateUploaded:
			p.State = stateComplete
		case StateMounted:
			p.State = StatePresent
		}
		out = append(out, p)
	}
	return out
}

// bytes is what counts for progress.
func (l *layer) bytes() int64 {
	if l.prepare != nil {
		return l.total
	}
	return l.desc.Size
}

// key tells a layer from others, also before its digest is known.
func (l *layer) key() digest.Digest {
	if l.fromBlob {
		return l.desc.Digest
	}
	return digest.FromString(l.name)
}

// result counts what became of layers.
func (c *conversion) result(layers []*layer) *Result {
	res := &Result{Form: c.o.Form, Losses: c.losses, Layers: []Layer{}}
	for _, l := range layers {
		res.Layers = append(res.Layers, Layer{Name: l.name, MediaType: l.desc.MediaType, Digest: l.desc.Digest, Size: l.desc.Size, State: l.said()})
		if l.same != nil || l.desc.Size < 0 {
			continue
		}
		res.Size += l.desc.Size
		switch l.said() {
		case StatePresent:
			res.Present += l.desc.Size
		case StateMounted:
			res.Mounted += l.desc.Size
		default:
			res.Sent += l.desc.Size
		}
	}
	return res
}

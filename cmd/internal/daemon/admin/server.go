package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/translate"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/care"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/jobs"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A Handler answers the admin interface. A part is needed by the requests that are about it.
type Handler struct {
	Store   *store.Store
	Version wire.Version

	Jobs       Jobs
	Mounts     Mounts
	Care       *care.Care
	Holders    Holders
	Containerd Puller
	Images     Pinner
	Facade     *registry.Handler
	Keys       Keys
	Node       Node

	// Providers returns the credentials that the kubelet has for the pods of the node; nil means none.
	Providers func(host, repository string) (remote.Credentials, error)

	// Models is the directory of mounts that only root can enter.
	Models string

	// Metrics answers /metrics.
	Metrics http.Handler

	// Log receives a line for each request that changes something; nil discards.
	Log *slog.Logger
}

// Jobs downloads and imports: *jobs.Jobs. What calls event continues when ctx ends or event returns an error.
type Jobs interface {
	Prefetch(ctx context.Context, ref remote.Ref, r jobs.Request, event func([]wire.Event) error) (store.Image, error)
	Rest(ctx context.Context, im store.Image, ref remote.Ref, r jobs.Request, event func([]wire.Event) error) (store.Image, error)
	Import(ctx context.Context, r wire.ImportRequest, event func([]wire.Event) error) ([]wire.Imported, error)
	ImportModels(ctx context.Context, dir string) ([]string, error)
	ImportArchive(ctx context.Context, r wire.ArchiveRequest, stream io.Reader, event func([]wire.Event) error) ([]wire.Imported, error)
	Convert(ctx context.Context, ref remote.Ref) (store.Image, error)
	Status(ctx context.Context) wire.Status
	Stop(ctx context.Context, table digest.Digest, refs ...string) (int, error)
}

// Mounts are the mounts on the host: *hostmounts.Mounts.
type Mounts interface {
	Prepare(ctx context.Context, im store.Image, ref remote.Ref, r wire.MountRequest) (wire.Mount, error)
	List(ctx context.Context) ([]wire.Mount, error)
	Release(ctx context.Context, dir string) error
}

// Holders knows what in containerd needs a table: *care.Snapshots.
type Holders interface {
	Holders(ctx context.Context, table digest.Digest) ([]wire.Holder, error)
}

// A Puller has containerd pull a model as for a kubelet, and returns the name of the image by its config, or
// errdefs.ErrFailedPrecondition if no pod can mount what containerd has then: *origins.Origins.
type Puller interface {
	Pull(ctx context.Context, ref, handler string, auth *cri.AuthConfig) (string, error)
}

// A Pinner has kubelets keep the images of models: *ctrd.Client.
type Pinner interface {
	MarkImage(ctx context.Context, name string, model digest.Digest) error
	PinImages(ctx context.Context, models map[digest.Digest]bool) (map[digest.Digest]bool, error)
}

// Keys are those with which containerd and the facade authenticate each other: *facadeport.Port.
type Keys interface {
	Rotate(ctx context.Context) error
}

// Node is what only the daemon knows.
type Node interface {
	Health(ctx context.Context) (wire.Health, error)

	// Received returns the bytes that registries themselves have sent, and the mirrors that were used.
	Received() (direct int64, mirrors []wire.Mirror)

	// Early returns how an image is read before it is complete, if not by its own chunk digests, or why it is not.
	Early(ctx context.Context, im store.Image) (how, whyNot string, err error)

	// Reach asks registries whether they answer.
	Reach(ctx context.Context, registries []string) []wire.Reached

	// Touch returns when the disk of the store has written something.
	Touch()
}

// Routes returns the handler of all paths.
func (h *Handler) Routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/v1/", working(h.requests(), h.Node))
	mux.Handle("GET /metrics", h.Metrics)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

// requests returns the handler of what package wire asks for at the admin socket.
func (h *Handler) requests() http.Handler {
	if h.Log == nil {
		h.Log = slog.New(slog.DiscardHandler)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /v1/version", query(func(context.Context) (wire.Version, error) { return h.Version, nil }))
	mux.Handle("GET /v1/health", query(func(ctx context.Context) (wire.Health, error) { return h.Node.Health(ctx) }))
	mux.Handle("GET /v1/registries", answer(func(r *http.Request) (any, error) {
		names := r.URL.Query()["name"]
		return h.Node.Reach(r.Context(), names[:min(len(names), wire.MaxReached)]), nil
	}))
	mux.Handle("POST /v1/facade/rotate", query(func(ctx context.Context) (struct{}, error) { return struct{}{}, h.Keys.Rotate(ctx) }))
	mux.Handle("GET /v1/asked", query(func(context.Context) (wire.Asked, error) { return wire.Asked{Names: h.Facade.Asked()}, nil }))
	mux.Handle("POST /v1/login", request(h.login))
	mux.Handle("GET /v1/images", answer(func(r *http.Request) (any, error) {
		return h.images(r.Context(), r.FormValue("size") == "true")
	}))
	mux.Handle("GET /v1/image", named(h.image))
	mux.Handle("GET /v1/why", named(h.why))
	mux.Handle("GET /v1/order", named(h.order))
	mux.Handle("GET /v1/states", named(h.states))
	mux.Handle("POST /v1/states", stream(h.hashStates))
	mux.Handle("DELETE /v1/image", h.removing(false))
	mux.Handle("GET /v1/removal", h.removing(true))
	mux.Handle("GET /v1/status", query(func(ctx context.Context) (wire.Status, error) {
		s := h.Jobs.Status(ctx)
		_, s.Mirrors = h.Node.Received()
		return s, nil
	}))
	mux.Handle("GET /v1/pins", query(h.pins))
	mux.Handle("PUT /v1/pin", request(h.pin))
	mux.Handle("DELETE /v1/pin", named(h.unpin))
	mux.Handle("GET /v1/mounts", query(func(ctx context.Context) ([]wire.Mount, error) { return h.Mounts.List(ctx) }))
	mux.Handle("POST /v1/mount", request(h.mount))
	mux.Handle("DELETE /v1/mount", answer(func(r *http.Request) (any, error) {
		return struct{}{}, h.Mounts.Release(r.Context(), r.FormValue("dir"))
	}))
	mux.Handle("POST /v1/gc", request(h.gc))
	mux.Handle("GET /v1/df", query(func(context.Context) (wire.Usage, error) {
		u, err := h.Store.Usage()
		return wire.Usage(u), err
	}))
	mux.Handle("POST /v1/prefetch", stream(h.prefetch))
	mux.Handle("POST /v1/import", stream(h.importModel))
	mux.Handle("POST /v1/import/models", request(h.importModels))
	mux.Handle("POST /v1/import/archive", http.HandlerFunc(h.importArchive))
	mux.Handle("PUT /v1/pause", request(h.pause))
	mux.Handle("POST /v1/verify", stream(h.verify))
	mux.Handle("GET /v1/signatures", answer(func(r *http.Request) (any, error) {
		return h.signatures(r.Context(), r.FormValue("name"))
	}))
	return mux
}

// StatusRoutes returns the handler of the paths that show the health of the daemon, and let go the pins of a cluster
// that has none any more: for pods that watch it, and need not be able to do what the admin socket can.
func (h *Handler) StatusRoutes() http.Handler { return working(h.statusMux(), h.Node) }

func (h *Handler) statusMux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /v1/version", h.requests())
	mux.Handle("GET /v1/health", query(func(ctx context.Context) (wire.Health, error) {
		v, err := h.Node.Health(ctx)
		v.Mirrors = withoutErrors(v.Mirrors)
		return v, err
	}))
	mux.Handle("DELETE /v1/fleet/pins", query(func(ctx context.Context) (wire.FleetPins, error) { return h.setFleetPins(ctx, wire.FleetPins{}) }))
	return mux
}

// withoutErrors returns mirrors without the texts of errors, which can have names of models.
func withoutErrors(mirrors []wire.Mirror) []wire.Mirror {
	out := slices.Clone(mirrors)
	for i, m := range out {
		if m.Last != nil {
			out[i].Last = &wire.Left{Reason: m.Last.Reason, At: m.Last.At}
		}
	}
	return out
}

// answer returns a handler that sends the result of f.
func answer(f func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, err := f(r)
		w.Header().Set("Content-Type", "application/json")
		if err != nil {
			e := wire.Wrap(err)
			w.WriteHeader(e.Status())
			v = e
		}
		_ = json.NewEncoder(w).Encode(v) // the client has disconnected
	})
}

// query returns a handler of requests without parameters.
func query[Out any](f func(context.Context) (Out, error)) http.Handler {
	return answer(func(r *http.Request) (any, error) { return f(r.Context()) })
}

// named returns a handler of requests whose only parameter is the name of a model.
func named[Out any](f func(context.Context, modelname.Name) (Out, error)) http.Handler {
	return answer(func(r *http.Request) (any, error) {
		name, err := modelname.Parse(r.FormValue("name"))
		if err != nil {
			return nil, err
		}
		return f(r.Context(), name)
	})
}

// request returns a handler of requests with a JSON body.
func request[In, Out any](f func(context.Context, In) (Out, error)) http.Handler {
	return answer(func(r *http.Request) (any, error) {
		in, err := decodeBody[In](r)
		if err != nil {
			return nil, err
		}
		return f(r.Context(), in)
	})
}

// stream returns a handler of requests with a JSON body that are answered with one JSON value a line.
// An error of f is the last line.
func stream[In any](f func(context.Context, In, *lines) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		out := &lines{w: w, enc: json.NewEncoder(w)}
		in, err := decodeBody[In](r)
		if err == nil {
			err = f(r.Context(), in, out)
		}
		if err != nil {
			_ = out.send(wire.Event{Status: wire.StatusError, Error: wire.Wrap(err)}) // the client may have disconnected
		}
	})
}

// decodeBody reads the JSON body of a request. An empty body is the zero value.
func decodeBody[In any](r *http.Request) (in In, err error) {
	dec := json.NewDecoder(http.MaxBytesReader(nil, r.Body, wire.MaxBody))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil && !errors.Is(err, io.EOF) {
		return in, fmt.Errorf("request: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return in, nil
}

// checkTTL returns errdefs.ErrInvalidArgument for a lifetime of a pin that is not valid.
func checkTTL(ttl time.Duration) error {
	if ttl < 0 {
		return fmt.Errorf("ttl %v is negative: %w", ttl, errdefs.ErrInvalidArgument)
	}
	return nil
}

// A lines is a response with one JSON value a line.
type lines struct {
	w   http.ResponseWriter
	enc *json.Encoder
}

// send writes v at once.
func (l *lines) send(v any) error {
	if err := l.enc.Encode(v); err != nil {
		return err
	}
	return http.NewResponseController(l.w).Flush()
}

// events sends each event.
func (l *lines) events(events []wire.Event) error {
	for _, e := range events {
		if err := l.send(e); err != nil {
			return err
		}
	}
	return nil
}

func (h *Handler) prefetch(ctx context.Context, r wire.PrefetchRequest, out *lines) error {
	name, err := modelname.Parse(r.Ref)
	if err != nil {
		return err
	}
	if err := checkTTL(r.TTL); err != nil {
		return err
	}
	if err := checkRate(r.Rate); err != nil {
		return err
	}
	label, req := r.Ref, jobs.Request{PrefetchRequest: r}
	var im store.Image
	if name.IsRef() {
		label = name.Ref.String()
		im, err = h.Jobs.Prefetch(ctx, name.Ref, req, out.events)
	} else if im, err = h.findShown(ctx, name); err == nil {
		im, err = h.Jobs.Rest(ctx, im, remote.Ref{}, req, out.events)
	} else if errdefs.IsNotFound(err) {
		err = fmt.Errorf("%s: no such model on this node; a reference fetches a new one: %w", name, errdefs.ErrNotFound)
	}
	if err != nil {
		return out.send(wire.Event{Status: wire.StatusError, Ref: label, Error: wire.Wrap(err)})
	}
	return out.send(wire.Event{Status: wire.StatusSuccess, Ref: label, Image: new(translate.Image(im))})
}

func (h *Handler) gc(ctx context.Context, o wire.GCOptions) (r wire.GCResult, err error) {
	if o.Keep < 0 {
		return r, fmt.Errorf("keep %d is negative: %w", o.Keep, errdefs.ErrInvalidArgument)
	}
	if err := h.Care.ReleaseUnneeded(ctx); err != nil {
		h.Log.Warn("models may stay whose images or mounts are gone", "err", err)
	}
	res, err := h.Store.GC(ctx, store.GCOptions{Keep: o.Keep, DryRun: o.DryRun, Abandoned: true, Models: true})
	return wire.GCResult(res), err
}

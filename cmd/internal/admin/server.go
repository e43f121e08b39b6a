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

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A Handler answers the admin interface. All fields except Log are required.
type Handler struct {
	Store   *store.Store
	Version api.Version

	// Prefetch downloads a model and calls event with the changes, until it is complete or ctx
	// ends. The work continues when ctx ends or event returns an error.
	Prefetch func(ctx context.Context, ref remote.Ref, r api.PrefetchRequest, event func([]api.Event) error) (store.Image, error)

	// Import imports a model of an Ollama on this machine, as Prefetch does from a registry.
	Import func(ctx context.Context, r api.ImportRequest, event func([]api.Event) error) (store.Image, store.Linked, error)

	// ImportPlan returns what Import would do, and ImportModels lists the models of an Ollama
	// store.
	ImportPlan   func(ctx context.Context, r api.ImportRequest) (api.ImportPlan, error)
	ImportModels func(ctx context.Context, dir string) ([]api.LocalModel, error)

	// Hydrate downloads the rest of an incomplete model, as Prefetch does. If wait is false, it
	// returns at once. ref is the reference by which the model was requested; zero if by a digest.
	Hydrate func(ctx context.Context, im store.Image, ref remote.Ref, wait bool, event func([]api.Event) error) error

	// Convert returns the image of a reference, without downloading its model.
	Convert func(ctx context.Context, ref remote.Ref) (store.Image, error)

	// Mount prepares the mount of a model on the host and returns what to mount; Mounts returns all
	// mounts, and Unmounted releases the model whose mount at a directory is gone.
	Mount     func(ctx context.Context, im store.Image, ref remote.Ref, r api.MountRequest) (api.Mount, error)
	Mounts    func(ctx context.Context) ([]api.Mount, error)
	Unmounted func(ctx context.Context, dir string) error

	// Status returns the work of the daemon.
	Status func(context.Context) api.Status

	// Verifying lists a verification of the model called name, or of all models if name is empty.
	// The caller reports its progress in bytes, and its end.
	Verifying func(name string) (progress func(done, total int64), end func(error))

	// Sources returns the sources of a table for a request by a reference, which may be zero.
	Sources func(ctx context.Context, table digest.Digest, ref remote.Ref) ([]transfer.Source, error)

	// Resolve restores the documents of an image, including its table, from its sources.
	Resolve func(ctx context.Context, im store.Image) error

	// Repaired repairs the snapshots that show a table, after a repair of its objects.
	Repaired func(ctx context.Context, table digest.Digest) error

	// Settle releases what is held for images that containerd no longer has, and for mounts that
	// are gone. It runs before a GC.
	Settle func(ctx context.Context) error

	// Snapshots compares the snapshots that show a table, or all if it is empty, with their table.
	Snapshots func(ctx context.Context, table digest.Digest) ([]api.SnapshotProblem, error)

	// CheckSignatures looks for the signatures of a reference.
	CheckSignatures func(ctx context.Context, ref string) (api.Signatures, error)

	// Signers returns the recorded results of the rules for an image.
	Signers func(ctx context.Context, im store.Image) ([]signature.Result, error)

	// Health returns facts for "ballast doctor".
	Health func(context.Context) (api.Health, error)

	// RotateCA replaces the keys with which containerd and the facade authenticate each other.
	RotateCA func(context.Context) error

	// Metrics answers /metrics.
	Metrics http.Handler

	// Log receives a line for each request that changes something; nil discards.
	Log *slog.Logger
}

// Routes returns the handler of all paths.
func (h *Handler) Routes() http.Handler {
	if h.Log == nil {
		h.Log = slog.New(slog.DiscardHandler)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /v1/version", answer(func(*http.Request) (any, error) { return h.Version, nil }))
	mux.Handle("GET /v1/health", answer(func(r *http.Request) (any, error) { return h.Health(r.Context()) }))
	mux.Handle("POST /v1/facade/rotate", answer(func(r *http.Request) (any, error) { return struct{}{}, h.RotateCA(r.Context()) }))
	mux.Handle("GET /v1/images", answer(h.images))
	mux.Handle("GET /v1/image", answer(h.image))
	mux.Handle("DELETE /v1/image", answer(h.removeImage))
	mux.Handle("GET /v1/status", answer(func(r *http.Request) (any, error) { return h.Status(r.Context()), nil }))
	mux.Handle("GET /v1/pins", answer(h.pins))
	mux.Handle("PUT /v1/pin", answer(h.pin))
	mux.Handle("DELETE /v1/pin", answer(h.unpin))
	mux.Handle("GET /v1/mounts", answer(func(r *http.Request) (any, error) { return h.Mounts(r.Context()) }))
	mux.Handle("POST /v1/mount", answer(h.mount))
	mux.Handle("DELETE /v1/mount", answer(func(r *http.Request) (any, error) {
		return struct{}{}, h.Unmounted(r.Context(), r.FormValue("dir"))
	}))
	mux.Handle("POST /v1/gc", answer(h.gc))
	mux.Handle("GET /v1/df", answer(func(r *http.Request) (any, error) { return h.Store.Usage(r.Context()) }))
	mux.HandleFunc("POST /v1/prefetch", h.prefetch)
	mux.HandleFunc("POST /v1/import", h.importModel)
	mux.Handle("POST /v1/import/plan", answer(h.importPlan))
	mux.Handle("POST /v1/import/models", answer(h.importModels))
	mux.HandleFunc("POST /v1/hydrate", h.hydrate)
	mux.Handle("PUT /v1/pause", answer(h.pause))
	mux.HandleFunc("POST /v1/verify", h.verify)
	mux.Handle("GET /v1/signatures", answer(h.checkSignatures))

	mux.Handle("GET /metrics", h.Metrics)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

// answer returns a handler that sends the result of f.
func answer(f func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, err := f(r)
		w.Header().Set("Content-Type", "application/json")
		if err != nil {
			e := api.Wrap(err)
			w.WriteHeader(e.Status())
			v = e
		}
		_ = json.NewEncoder(w).Encode(v) // the client has disconnected
	})
}

// decodeBody reads the JSON body of a request into v. An empty body leaves v as it is.
func decodeBody(r *http.Request, v any) error {
	dec := json.NewDecoder(http.MaxBytesReader(nil, r.Body, api.MaxBody))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("request: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return nil
}

// A stream writes one JSON value a line.
type stream struct {
	w   http.ResponseWriter
	enc *json.Encoder
}

func newStream(w http.ResponseWriter) *stream {
	w.Header().Set("Content-Type", "application/x-ndjson")
	return &stream{w: w, enc: json.NewEncoder(w)}
}

// send writes v at once.
func (s *stream) send(v any) error {
	if err := s.enc.Encode(v); err != nil {
		return err
	}
	return http.NewResponseController(s.w).Flush()
}

// events sends each event.
func (s *stream) events(events []api.Event) error {
	for _, e := range events {
		if err := s.send(e); err != nil {
			return err
		}
	}
	return nil
}

func (h *Handler) prefetch(w http.ResponseWriter, r *http.Request) {
	var req api.PrefetchRequest
	out := newStream(w)
	err := decodeBody(r, &req)
	var ref remote.Ref
	if err == nil {
		ref, err = resolve.ParseRef(req.Ref)
	}
	if err == nil && req.TTL < 0 {
		err = fmt.Errorf("ttl %v is negative: %w", req.TTL, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		_ = out.send(api.Event{Status: api.StatusError, Error: api.Wrap(err)})
		return
	}
	im, err := h.Prefetch(r.Context(), ref, req, out.events)
	last := api.Event{Status: api.StatusSuccess, Ref: ref.String(), Image: &im}
	if err != nil {
		last = api.Event{Status: api.StatusError, Ref: ref.String(), Error: api.Wrap(err)}
	}
	_ = out.send(last)
}

func (h *Handler) gc(r *http.Request) (any, error) {
	var o store.GCOptions
	if err := decodeBody(r, &o); err != nil {
		return nil, err
	}
	if o.Keep < 0 {
		return nil, fmt.Errorf("keep %d is negative: %w", o.Keep, errdefs.ErrInvalidArgument)
	}
	if h.Settle != nil {
		if err := h.Settle(r.Context()); err != nil {
			h.Log.Warn("models may stay whose images or mounts are gone", "err", err)
		}
	}
	return h.Store.GC(r.Context(), o)
}

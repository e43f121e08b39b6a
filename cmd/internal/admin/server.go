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

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// maxRequest is the largest body of a request, in bytes.
const maxRequest = 1 << 20

// A Handler answers the admin interface. All fields but Log are needed.
type Handler struct {
	Store   *store.Store
	Version Version

	// Prefetch fetches a model and calls event with what has changed, until it is done or
	// ctx ends. The work goes on when ctx ends or event returns an error.
	Prefetch func(ctx context.Context, r PrefetchRequest, event func([]Event) error) (store.Image, error)

	// Import takes over a model of an Ollama on this machine, as Prefetch does from a registry.
	Import func(ctx context.Context, r ImportRequest, event func([]Event) error) (store.Image, store.Linked, error)

	// ImportPlan says what Import would do, and ImportModels what there is.
	ImportPlan   func(ctx context.Context, r ImportRequest) (ImportPlan, error)
	ImportModels func(ctx context.Context, dir string) ([]LocalModel, error)

	// Hydrate brings the rest of a model that is not complete, as Prefetch does. If r says that
	// nobody waits, it returns at once.
	Hydrate func(ctx context.Context, im store.Image, r HydrateRequest, event func([]Event) error) error

	// Convert finds out what image a reference stands for, without fetching its model.
	Convert func(ctx context.Context, ref remote.Ref) (store.Image, error)

	// Mount prepares the mount of a model on the host and returns what to mount; Mounts returns all mounts, and
	// Unmounted lets go of the model whose mount at a directory is gone.
	Mount     func(ctx context.Context, im store.Image, r MountRequest) (Mount, error)
	Mounts    func(ctx context.Context) ([]Mount, error)
	Unmounted func(ctx context.Context, dir string) error

	// Status returns what the daemon does.
	Status func(context.Context) Status

	// Verifying takes note of a comparison of the model that name stands for, of all if it is empty. The caller
	// says how far it is, and how it ended.
	Verifying func(name string) (progress func(done, total int64), end func(error))

	// Sources returns where the blobs of a table can be fetched from for who asks for it by a
	// reference, or by a digest or nothing.
	Sources func(ctx context.Context, table digest.Digest, name string) ([]transfer.Source, error)

	// Resolve makes the documents of an image again, its table among them, from where it was
	// resolved.
	Resolve func(ctx context.Context, im store.Image) error

	// Repaired mends the snapshots that show a table, after its objects were mended.
	Repaired func(ctx context.Context, table digest.Digest) error

	// Settle lets go of what is kept for images that containerd does not have any more, and for mounts that are
	// gone; before a GC.
	Settle func(ctx context.Context) error

	// Snapshots compares what shows a table (all, if it is empty) with it.
	Snapshots func(ctx context.Context, table digest.Digest) ([]SnapshotProblem, error)

	// CheckSignatures looks for the signatures of a reference.
	CheckSignatures func(ctx context.Context, ref string) (Signatures, error)

	// Signers returns what was found out before about who signed an image.
	Signers func(ctx context.Context, im store.Image) ([]signature.Result, error)

	// Health returns what "ballast doctor" wants to know.
	Health func(context.Context) (Health, error)

	// RotateCA replaces the keys by which containerd and the facade know each other.
	RotateCA func(context.Context) error

	// Metrics answers /metrics.
	Metrics http.Handler

	// Log is where requests that change something are reported; nil discards.
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

// answer makes a handler of a function that returns what to answer with.
func answer(f func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, err := f(r)
		w.Header().Set("Content-Type", "application/json")
		if err != nil {
			e := Wrap(err)
			w.WriteHeader(e.status())
			v = e
		}
		_ = json.NewEncoder(w).Encode(v) // the client has gone; there is nobody to tell
	})
}

// decodeBody reads the JSON body of a request into v. An empty body leaves v as it is.
func decodeBody(r *http.Request, v any) error {
	dec := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxRequest))
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

// events writes each of some events.
func (s *stream) events(events []Event) error {
	for _, e := range events {
		if err := s.send(e); err != nil {
			return err
		}
	}
	return nil
}

func (h *Handler) prefetch(w http.ResponseWriter, r *http.Request) {
	var req PrefetchRequest
	out := newStream(w)
	err := decodeBody(r, &req)
	if err == nil {
		var ref remote.Ref
		if ref, err = resolve.ParseRef(req.Ref); err == nil {
			req.Ref = ref.String()
		}
	}
	if err == nil && req.TTL < 0 {
		err = fmt.Errorf("ttl %v is negative: %w", req.TTL, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		_ = out.send(Event{Status: StatusError, Error: Wrap(err)})
		return
	}
	im, err := h.Prefetch(r.Context(), req, out.events)
	last := Event{Status: StatusSuccess, Ref: req.Ref, Image: &im}
	if err != nil {
		last = Event{Status: StatusError, Ref: req.Ref, Error: Wrap(err)}
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
			h.Log.Warn("models of images that containerd may not have any more stay", "err", err)
		}
	}
	return h.Store.GC(r.Context(), o)
}

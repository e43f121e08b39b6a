// Package admin is the local interface of the daemon: HTTP over a unix socket that only root
// can open, and the client for it. The store's database is locked by the daemon, so the command
// line asks the daemon.
//
//	GET    /v1/version
//	GET    /v1/health             facts for "ballast doctor"
//	GET    /v1/images             all images
//	GET    /v1/image?name=N       one image with its files; N is a reference or a digest
//	DELETE /v1/image?name=N
//	POST   /v1/prefetch           PrefetchRequest → a stream of Event
//	POST   /v1/import             ImportRequest → a stream of ImportEvent
//	POST   /v1/import/plan        ImportRequest → ImportPlan
//	POST   /v1/import/models      ImportRequest → all LocalModel of a directory
//	POST   /v1/hydrate            HydrateRequest → a stream of Event
//	PUT    /v1/pause              PauseRequest → PauseRequest
//	GET    /v1/status             what is running, and what ended last
//	GET    /v1/pins               all pins, with the sizes of their models
//	PUT    /v1/pin                PinRequest
//	DELETE /v1/pin?name=N
//	GET    /v1/mounts             models that are mounted on the host
//	POST   /v1/mount              MountRequest → Mount, which the client is to make
//	DELETE /v1/mount?dir=D        the mount at D is gone
//	POST   /v1/gc                 store.GCOptions → store.GCResult
//	POST   /v1/verify             VerifyRequest → a stream of VerifyEvent
//	GET    /v1/df                 store.Usage
//	GET    /metrics
//	GET    /debug/pprof/
//
// Answers are JSON; a stream is one JSON value a line, and its last line has either the result
// or the error. An error is an object with a code, which names a category of
// github.com/containerd/errdefs, and a message; the client gives back an error of that
// category, so that exit codes come out the same as if there was no socket between. The message
// is for people and does not repeat the category.
//
// An image that can not be shown, because a document of it is damaged or gone, is listed as
// invalid, with the error; it hides no other.
//
// The daemon owns the work: a client that goes away ends its stream and nothing else.
package admin

// Package wire is the contract between the daemon and its clients: the requests and answers of its sockets, which "-o
// json" prints too, the errors, and a client. It is a leaf: it knows nothing of the engine, whose types
// cmd/internal/contract/translate translates.
//
// The admin socket is HTTP over a unix socket that only root can open. The daemon holds a lock on the database of the
// store, so the command line asks the daemon.
//
//	GET    /v1/version
//	GET    /v1/health             facts for "ballast doctor"
//	GET    /v1/registries?name=R&name=S   []Reached: whether registries answer ballastd
//	GET    /v1/asked              Asked: repositories for which pulls were asked for credentials
//	POST   /v1/login              Login → Password, which stands for credentials at the facade
//	GET    /v1/images             all images
//	GET    /v1/image?name=N       one image with its files; N is a reference or a digest
//	DELETE /v1/image?name=N       Removed; with &now=true its files too, if nothing uses them
//	GET    /v1/removal?name=N     what that would remove
//	POST   /v1/prefetch           PrefetchRequest → a stream of Event
//	POST   /v1/import             ImportRequest → a stream of ImportEvent
//	POST   /v1/import/models      ImportRequest → the names of all models of a directory
//	POST   /v1/import/archive?request=R   R is an ArchiveRequest, the body the archive → a stream of ImportEvent
//	GET    /v1/states?name=N      the large files of a model without chunk digests
//	POST   /v1/states             HashStatesRequest → a stream of HashStatesEvent
//	PUT    /v1/pause              PauseRequest → PauseRequest
//	GET    /v1/status             what is running, and what ended last
//	GET    /v1/pins               all pins, with the sizes of their models
//	PUT    /v1/pin                PinRequest
//	DELETE /v1/pin?name=N
//	GET    /v1/mounts             models that are mounted on the host
//	POST   /v1/mount              MountRequest → Mount, which the client is to make
//	DELETE /v1/mount?dir=D        the mount at D is gone
//	GET    /v1/resolve?name=N     Resolved; N is a reference. At the socket in resolve.address, which has only this
//	POST   /v1/gc                 GCOptions → GCResult
//	POST   /v1/verify             VerifyRequest → a stream of VerifyEvent
//	GET    /v1/df                 Usage
//	POST   /v1/fleet/pull         FleetPullRequest → a stream of Event. At the socket of the agent, with the next four
//	POST   /v1/fleet/version      FleetVersionRequest → FleetVersion
//	PUT    /v1/fleet/pins         FleetPins → FleetPins
//	DELETE /v1/fleet/pins         also at the status socket
//	GET    /v1/fleet/node         FleetNode
//	GET    /v1/fleet/pulls        []Pull
//	GET    /metrics
//	GET    /debug/pprof/
//
// The client waits no longer than ten seconds for the first byte of an answer, and a minute for another one: of an
// answer that takes longer, the daemon says so with responses of status 102 (Processing), as long as its disk writes.
// A daemon that hangs therefore ends a command, and one that works long does not. Once an answer has begun, it may
// take any time.
//
// Answers are JSON. A stream has one JSON value a line; its last line has the result or the error. An error is
// an object with a code, which names a category of github.com/containerd/errdefs, and a message for people, which
// does not repeat the category. The client returns an error of that category, so that the exit code is the same as
// without a socket.
//
// An image that cannot be shown, because one of its documents is damaged or missing, is listed as invalid with the
// error; the others are listed as usual.
//
// The daemon owns the work: when a client disconnects, only its stream ends.
//
// # Compatibility
//
// From v0.1.0 on, within one major version: a member keeps its name, type, unit and meaning, and a path its request.
// New members and new values of states, kinds and statuses can appear at any time, so clients ignore what they do not
// know. A member goes one minor version after the change log has named it. The daemon and its clients need not have
// the same version.
package wire

// Package daemon builds the parts of ballastd and runs them.
//
// # Parts
//
//	store        verified bytes; its database is the lock against a second daemon
//	remote       registries
//	pullsecret   credentials provided by callers
//	registry     the facade, and conversion
//	facadeport   access to the facade over TLS on loopback, and its port
//	snapshotter  } over one gRPC socket, for containerd
//	differ       }
//	jobs         prefetches, imports from a local Ollama, and the rest of models that are already shown
//	origins      models pulled by the digest of their registry, in image volumes
//	hostmounts   models that processes of the host read without containerd
//	care         verification, repair, and the removal of what has expired
//	ctrd         requests to containerd
//	lazy         the mount of incomplete files; mounted again after an unmount
//	admin        HTTP over the admin socket, for the command line
//	metrics      counters of all of these
//	tracing      spans of pulls, for a collector of the environment
//	hostsfile    hosts.toml files of closed registries, which other programs replace
//
// All parts run in one errgroup, started in Run; if one part ends with an error, all end.
//
// # Credentials
//
// The credentials of the node are used for requests on the admin socket and for pins. What
// containerd pulls, and the rest of it later, is downloaded with the pull secrets that callers
// provided for the same repository. Secrets needed by snapshots are kept as long as the snapshots;
// those of incomplete models are also sealed on disk. jobs.Sources.PruneSecrets removes secrets
// that are not needed, at the start, after each applied table, and when the work on one has ended.
//
// # Start
//
// The store is opened first, which fails if another daemon uses it. Only then are sockets of an
// earlier daemon replaced, so a second daemon cannot take over those of the first. The references
// of the snapshotter are reconciled before the first request. Models that are shown but incomplete
// become readable before the lazy mount is served. If a holder kept the mount of the earlier
// daemon, it is taken over, and waiting reads continue. Last, the daemon reports to the service
// manager that it is ready.
//
// # Stop
//
// When the context ends, servers accept no new requests, and cut off running ones after a few
// seconds. Prefetches end at once with errdefs.ErrAborted. The lazy mount is not unmounted: its
// readers wait for the next daemon. Last, the store is closed; downloaded bytes are kept, and a
// later download continues from them. Containers that read complete models are not affected: their
// mounts need no daemon.
package daemon

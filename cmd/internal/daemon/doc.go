// Package daemon builds the parts of ballastd and runs them.
//
// # Parts
//
//	store        verified bytes; its database is the lock against a second daemon
//	remote       registries
//	pullsecret   credentials that callers gave
//	registry     the facade, and conversion
//	port         who may ask the facade, over TLS on loopback, and its port
//	snapshotter  } over one gRPC socket, for containerd
//	differ       }
//	pulls        prefetches, imports from a local Ollama and hydrations, owned by the daemon
//	background   the rest of models that are shown already
//	origins      models that were pulled by the digest of their registry, in image volumes
//	mounts       models that processes of the host read, without containerd
//	fleet        what other nodes ask, and are asked, about digests
//	lazy         the mount of files that are not complete; mounted anew if somebody unmounts it
//	admin        HTTP over the admin socket, for the command line
//
// All that runs runs in one errgroup, started in Run; if one part ends with an error, all end.
//
// # Sources
//
// A model is fetched from what it is pulled by, and in that order: the repository that containerd
// pulls from, the reference of a prefetch, a pin, a hydration or a repair. The names are recorded
// for the snapshot or the pin, and count whenever the rest has to be fetched later. Others who
// resolved the same image elsewhere are not asked: everybody can have a registry that serves a
// manifest, and what is behind it may hang or lie. Only for a table that nobody refers to, or of
// which nothing is recorded, all names that its images were resolved from count.
//
// # The facade
//
// It gives who asks what the node can pull, and containerd believes what it answers. So both show a key
// (package facadetls) before anything is asked, and connections of those who have not are few and short
// (door). Requests that a browser could be made to send are refused as well (guard).
//
// The port is that of a socket of the service manager, which holds it while there is no daemon, or the
// daemon binds it itself. If another process has it, or the keys can not be written, there is no facade
// until that ends, and everything else works: containers start, models that are shown are read, and
// prefetches go on.
//
// # Credentials
//
// Those of the node are for what comes over the admin socket and for what is pinned. What containerd
// pulls, and the rest of it later, is fetched with the pull secrets that its callers gave for the same
// repository. Those that snapshots need are held for as long, and of models that are not complete sealed
// on the disk: settleSecrets compares what is kept with what is needed, at the start, after each table
// that was applied, and when the work on one has ended.
//
// # What can be seen
//
// The metrics count models by who wanted them: prefetches, imports, hydrations (of "background" if
// nobody waits), and pulls of containerd, which wait while a table layer is applied. At log level debug every request to the facade and to
// the admin socket has a line, without headers.
//
// # Start
//
// The store is opened first: it fails if another daemon has it. Only then are old sockets
// removed, so a second daemon can not take the sockets of the first. A socket is made under
// another name, gets mode 0600, and is then renamed, so it is never open to others. The
// snapshotter's references are reconciled before the first request. Models that are shown but not
// complete become readable again before the lazy mount is served, which is taken over from the daemon
// before if somebody kept it: who has been waiting since then goes on. Then the service manager is
// told that the daemon is ready.
//
// # Stop
//
// When the context ends, servers take no new requests and wait stopTimeout for those that
// run; then they are cut off. Prefetches end at once with errdefs.ErrAborted. The lazy mount is not
// unmounted: who reads it waits for the next daemon. Last the store is closed; what was fetched so far stays and is gone on with later. Containers that read
// complete models are not touched: their mounts need no daemon.
package daemon

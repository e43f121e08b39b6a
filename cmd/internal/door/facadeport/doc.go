// Package facadeport serves the facade at its port to authenticated callers.
//
// The facade gives a caller what the node can pull, and containerd trusts its responses. So both
// sides authenticate with a key (package facadetls) before a request is read, and unauthenticated
// connections are few and short (listener). Requests that a browser could be made to send are also
// refused (guard).
//
// The port is a socket of the service manager, which holds it while the daemon is down, or the
// daemon binds it itself. While another process has the port, or the keys cannot be written, there
// is no facade, and everything else works: containers start, shown models are readable, and
// prefetches continue.
package facadeport

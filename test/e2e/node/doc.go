// Package node sets up whole nodes for the journeys, the demo and the benchmarks: a real
// containerd, the daemon as built by make, a real OCI registry, and containers run by runc.
// Nothing in it imitates anything: what is not the real program is a real HTTP server in
// front of one, such as [Wire], which spoils traffic, and [Ollama], which speaks the
// dialect of that registry.
//
// # Isolation
//
// [Main] runs a program again in mount and process namespaces of its own, with a private
// /run and one directory for temporary files. When the program ends, however it ends, the
// kernel ends every process it started and every mount goes. So nodes may use paths that a
// containerd of the machine uses too, such as /run/containerd, and nothing has to be cleaned
// up by name.
//
// Each [Node] has one short directory, because containerd puts sockets below it and a
// socket's path has at most 107 bytes.
//
// # Errors
//
// Functions take a [TB] and end the test on errors of the set-up. What a journey is about,
// such as the outcome of a pull, is returned.
//
// # Credentials
//
// Every server that is started with [Serve] looks at the credentials that arrive. Those that
// [Node.Ctr], [CRI.PullAs] and [Node.Login] hand out belong to one address each, and so do tokens that a
// server gives out; others are declared with [Belongs]. Anything else fails the test.
//
// # Binaries
//
// containerd, ctr, the runc shim and runc are built by `make tools` and, of other versions, by
// `make tools-all`, ballast and ballastd by `make build`; busybox is Debian's.
package node

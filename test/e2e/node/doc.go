// Package node sets up whole nodes for end-to-end tests, the demo and the benchmarks: a real containerd,
// ballastd as built by make, a real OCI registry, and containers run by runc. It contains no imitations. What
// is not the real program is a real HTTP server in front of one, such as [Wire], which disturbs traffic, and
// [Ollama], which behaves as the Ollama registry does.
//
// # Isolation
//
// [Main] runs a program again in new mount and process namespaces, with a private /run and one directory for
// temporary files. When the program ends, in whatever way, the kernel ends all processes that it started and
// removes all mounts. Nodes can therefore use paths of the machine's containerd, such as /run/containerd, and
// nothing must be cleaned up by name.
//
// A [Suite] does so for each test function, with a network namespace in addition: tests run at the same time
// without seeing each other. What they share is the kernel's: the processors, the disk and the cgroups.
//
// Each [Node] has a directory with a short path, because containerd creates sockets below it and the path of a
// socket has at most 107 bytes.
//
// # Errors
//
// Functions take a [TB] and end the test on errors of the set-up. What a test is about, such as the result of
// a pull, is returned.
//
// # Credentials
//
// Every server started with [Serve] checks the credentials it receives. The credentials of [Node.Ctr],
// [CRI.PullAs] and [Node.Login], and tokens issued by a server, each belong to one address; others are
// declared with [Belongs]. All other credentials fail the test.
//
// # Binaries
//
// containerd, ctr, the runc shim and runc are built by `make tools`, other versions by `make tools-all`, ballast
// and ballastd by `make build`. busybox is Debian's.
package node

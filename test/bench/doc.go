// Command bench measures ballast beside what bounds it and what it replaces, in one run, and prints tables in Markdown:
// medians with the smallest and the largest, the ratio of the pairs, and whether targets are met. It starts its own
// registry, containerd and ballastd in namespaces of its own; contrib/docs/performance.md says how to read what it prints.
//
//	limit    8 ranged HTTP streams, sha256 in order, write, fsync: no containerd, no unpacking
//	deliver  8 ranged HTTP streams, sha256 of each range, write, a FUSE mount, a reader process, fsync
//	each     8 streams of requests, one for each blob, sha256, write, syncfs in the end
//	download 8 ranged HTTP streams to nowhere
//	stock    containerd pulling, unpacking and syncing the same bytes as an OCI tar image
//	ballast  containerd pulling the model through the facade, resident and verified
//	native   the same file on the bare file system
//	overlayfs  containerd pulling, unpacking and mounting ordinary images without ballast
//	peers    other snapshotters and Ollama's server, with the same bytes (only "make bench-peers")
//
// # Fairness
//
// A control does the work that the candidate has to do, on the same machine in the same run; candidate and control
// alternate. What reads is a process of its own, and counts its CPU-seconds apart. Before each run caches are dropped,
// the blob at the registry is read once, and as the last thing memory is touched and freed: on small virtual machines
// the first touch of memory costs more than what is measured, and what is free for some time can be taken back.
//
// Links are the loopback device of a network namespace, which the kernel slows down; round trips are
// waited for in the registry. Figures of two processors are bound by them: they are the registry, the
// reader and the daemon at once. CPU-seconds depend less on other load of the machine than times.
//
// # Scale
//
// The measurement scale fills the node step by step with the records and names of up to a million objects
// (-objects), and prints a table with a column for each step.
//
// # Ledger
//
// ballastd has a profile endpoint on its admin socket, and the control profiles itself. Samples are assigned to kinds of
// work by the functions on their stacks; the kernel's count of the process is divided by the shares of the kinds. A
// sample within a system call is of who made it, so copies in the kernel are part of "write to files", "sockets" and so on.
package main

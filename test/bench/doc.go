// Command bench measures ballast beside what bounds it and what it replaces, in one run, and
// prints one table of medians and ratios. It starts its own registry, containerd and ballastd
// in namespaces of its own.
//
//	limit    8 ranged HTTP streams, sha256 in order, write, fsync: no containerd, no unpacking
//	stock    containerd pulling, unpacking and syncing the same bytes as an OCI tar image
//	ballast  containerd pulling the model through the facade, resident and verified
//	native   the same file on the bare file system
//	download 8 ranged HTTP streams alone, or with hashing and writing
//	overlayfs  containerd pulling, unpacking and mounting ordinary images without ballast
//	stargz   the stargz snapshotter, with the same layers (only "make bench-peers")
//
// Links are the loopback device of a network namespace, which the kernel slows down; round trips are
// waited for in the registry. Figures of two processors are bound by them: they are the registry, the
// reader and the daemon at once.
//
// The measurement scale fills the node step by step with the records and names of up to a million objects
// (-objects), and has one row for each thing with the figures of all steps.
//
// Before each run caches are dropped, the blob at the registry is read once, and memory is
// touched and freed: on small virtual machines the first touch of memory costs more than
// what is measured. Candidate and control alternate.
package main

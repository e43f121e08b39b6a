// Command bench measures ballast beside what bounds it and what it replaces, in one run, and
// prints one table of medians and ratios. It starts its own registry, containerd and ballastd
// in namespaces of its own.
//
//	limit    8 ranged HTTP streams, sha256 in order, write, fsync: no containerd, no unpacking
//	stock    containerd pulling, unpacking and syncing the same bytes as an OCI tar image
//	ballast  containerd pulling the model through the facade, resident and verified
//	native   the same file on the bare file system
//
// Before each run caches are dropped, the blob at the registry is read once, and memory is
// touched and freed: on small virtual machines the first touch of memory costs more than
// what is measured. Candidate and control alternate.
package main

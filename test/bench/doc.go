// Command bench measures ballast against its limits and the software it replaces, in one run, and
// prints tables in Markdown: medians with minimum and maximum, the ratio of the pairs, and whether
// targets are met. It starts its own registry, containerd and ballastd in new namespaces;
// README.md explains the output.
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
// A control does the work that the candidate must do, on the same machine in the same run; candidate
// and control alternate. The reader is a separate process, whose CPU-seconds are counted separately.
// Before each run caches are dropped, the blob is read once at the registry, and finally memory is
// touched and freed: on small virtual machines the first touch of memory costs more than the measured
// work, and free memory can be taken back after some time.
//
// Links are the loopback device of a network namespace with a rate set in the kernel; round trips are
// waited for in the registry. On two processors the results are limited by them, because registry,
// reader and daemon share them. CPU-seconds depend less on other load of the machine than times.
//
// # Scale
//
// The measurement scale fills the node step by step with the records and files of up to a million
// objects (-objects), and prints a table with a column for each step.
//
// # Ledger
//
// "make bench-ledger" divides the CPU-seconds of a cold lazy read, of deliver and of a pull. ballastd has a
// profile endpoint on its admin socket, for root only, and the control profiles itself. Samples are
// assigned to kinds of work by the functions on their stacks; the CPU time of the process (/proc/PID/stat)
// is divided by the shares of the kinds. So the sum is exact, and the parts are as exact as some hundred samples: at
// 2 GiB and 3 rounds, ± 0.05 s/GiB. A sample within a system call belongs to its caller, so copies in the
// kernel are part of "write to files", "sockets" and so on. What no process is charged for (writeback) is in the
// last row, which on a busy machine has the work of others too.
package main

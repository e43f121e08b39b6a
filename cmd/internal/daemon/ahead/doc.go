// Package ahead reads the large files of complete models ahead of loaders, into the page cache.
//
// The kernel reads such files for containers without the daemon, with the read-ahead of the disk, 128 KiB as
// a rule. On a disk that takes a time for each request, whatever its size, as network volumes do, a loader
// waits for most of its pages; one that forbids read-ahead (MADV_RANDOM) waits for each of them.
//
// # Who reads
//
//	daemon    Ahead.Mounted   a model is mounted: is it worth it? Then it starts a process, one for each model
//	process   Run             waits for a reader, and reads ahead of it
//
// It is a process of its own because of memory: a page of the page cache is charged to the memory cgroup of
// the process that reads it first, and stays there while the container uses it. In the cgroup of the daemon,
// whose limit is much smaller than a model, pages would be reclaimed that a container has mapped. The process
// moves itself into the root of the hierarchy, which has no limit: pages read ahead are nobody's, like those
// of a model that another container has loaded, and go when the node needs memory. Where it cannot, as in a
// container without access to the cgroups of the node, it ends without having read anything.
//
// # Who is followed
//
// The kernel does not say who reads a file: faults in mappings make no events. So Run leaves gaps. A file is
// divided into windows of 16 MiB. The first page of each is never read by Run, and if it is in the page cache
// (cachestat, Linux 6.5), a reader has got there. Nothing is read of a file before a reader has read its first
// page, which has the header in all formats. Then a window is read ahead, one more for each that the reader has
// reached, and at most 8 that no reader has reached: so much is read in vain when a loader stops, reads in
// another order or skips. The price is a request of the reader for each window. What was in the page cache of
// these pages before, and is not mapped, is dropped at the start.
//
// # When not
//
//   - The disk does not wait: one-page reads around the page cache, before anybody loads, are faster than half a
//     millisecond. On such disks another reader costs more CPU than it gains. The mode On reads ahead there, too.
//   - Nobody but users with the mode Off has mounted the model.
//   - What is not read yet of a model is more than three quarters of MemAvailable, or processes wait for memory (PSI).
//     Both are looked at again before each window.
//   - Nobody has read on for 5 minutes, everything is read, or the daemon has ended.
//   - The file was removed: it is closed within a second, also while it is read, because until then it takes its space.
package ahead

// Package dirs knows the directories of the daemon, the root and those of its sockets, and which
// names in them are ballast's. Everything else in them belongs to others and is never changed.
//
// A directory is accepted if it does not exist, is empty, or was used by ballast before. So a
// directory of another program cannot become the root, even if all of its names could be ballast's,
// as those of another snapshotter are.
//
// Paths are those of a host, whose root directory may be below another directory in this process,
// as /host in a pod. "/" is the host of this process.
package dirs

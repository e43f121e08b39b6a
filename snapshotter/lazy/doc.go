// Package lazy is a FUSE file system of files that are not complete yet.
//
// The file system is a data-only lower layer of overlayfs, behind the store's objects:
//
//	lowerdir=<snapshot>::<complete objects>::<dir>/<view>
//
// The directory of each view is named by a number and has the tree of the objects,
// /sha256/<2 hex>/<64 hex>, with every file whose size the Source knows in that view. The root is the
// directory of the common view, number 0. The file system is read-only, and directories list nothing,
// because overlayfs only looks up names. A read waits until the Source has the verified bytes. A file
// that has become complete is read from its object, without the Source.
//
// # Terms
//
//	connection   the open /dev/fuse of a mount; requests wait in it while no process serves them
//	takeover     serving a connection that an earlier process opened
//	keeper       keeps a copy of the connection while the daemon does not run (package fdstore)
//	node         a file or directory known to the kernel, by number
//	handle       one opening of a file, from OPEN to RELEASE
//	passthrough  the kernel reads the object itself, without the daemon
//
// # Restarts
//
//	absent → mounted → serving ──Close──▶ hidden, kept → serving (takeover)
//	                      ├──────SIGKILL──────────▶ kept → serving (takeover)
//	                      │                          │
//	                      └──Unmount──▶ absent       └──keeper dies──▶ dead → replaced by Start
//
// Close also gives the mount itself to the keeper and unmounts its directory, because df, find and rm would hang
// there until the next Start, which mounts it there again. Overlays and open files use the same file system all the
// time. A daemon that hangs cannot do that, and the kernel asks only the daemon: df waits for it, until the service
// manager restarts it, unless it leaves out file systems of this type (df -x fuse.ballast).
//
// While the connection is kept, reads block and none fails. The next Start takes the connection over:
// it feeds the saved first message of the kernel (INIT) to the protocol code, and asks the kernel to
// resend unanswered requests (FUSE_NOTIFY_RESEND, Linux 6.9). On older kernels, Close answers such
// requests with an error, and after a SIGKILL of the daemon their readers hang until they are killed;
// Start logs that. If no keeper has the connection, the mount is dead: Start detaches it and mounts
// again, and overlays on the old mount get ENOTCONN for everything not cached or open with passthrough.
//
// State that one process has reported to the kernel must hold for its successors. Node numbers
// therefore follow from digests, and other state is written to disk before the kernel gets the
// answer.
//
// # Mount point
//
// containerd id-maps the common parent directory of all layers, including the mounts below it. If the
// kernel can id-map the lazy mount, it is at Dir, beside the layers, otherwise at Apart. Start moves a
// mount from the wrong directory while it is in use: it binds the file system to the other directory,
// records that, and unmounts the old one. A new mount is made at Dir, because only the INIT message
// shows what the kernel supports.
//
// # State
//
//	<state>/mount.json   the mount: id, directory, device, INIT message, capabilities
//	<state>/nodes        slots of 64 bytes: header; then node, digest, size, checksum, view
//	<state>/handles      slots of 32 bytes: header; then handle, node, request, backing id, mode
//
// Each slot is written by one write within one page, so a SIGKILL leaves either the old or the new
// slot. Nothing is synced, because the mount does not survive a reboot. The header has the id of the
// mount. Files of another mount are not used, and a new mount starts with new files.
//
// # Node numbers
//
//	1                    the root
//	2                    sha256
//	256 … 511            sha256/00 … sha256/ff
//	512 × view + these   the same in a view
//	1<<63 | 63 bits      files: the first bits of the identity (see Source) or, if another file has
//	                     that number, one of the next few
//
// Until a file is complete, the bytes of its digest can change: a model can have a wrong digest for its
// bytes and be removed, and another one come with the right bytes. The kernel therefore looks up each
// name on every open, and another identity is another node, with its own pages.
//
// A number belongs to one digest of one view until the kernel has forgotten (FORGET) all its lookups
// and the last handle is closed. Then its slot is free. Lookups are counted in memory, so a node of an
// earlier process stays as long as the mount.
//
// # Limits
//
// Any container can open and look up its files as often as it likes. One control group may have 256
// handles, or 1/64 of the free ones if that is more. Further opens fail with ENFILE. Handles of earlier
// processes count for no control group.
//
// # Passthrough
//
// The kernel refuses (EIO) to have a file open both with passthrough and through its cache, or with two
// backing files. A file is opened with passthrough if it is complete and no cached handle of it is
// open, and through the cache otherwise. All passthrough handles of a file share one backing id.
// Backing ids belong to the connection and are part of a handle's slot. A SIGKILL between registering
// an id and writing the slot leaks the id, and an open object, until the mount ends.
//
// # Memory
//
// The kernel has at most maxBackground read-ahead requests in flight, of 1 MiB each; other reads are of
// one page. A waiting read holds no memory for its answer. When the bytes are available it takes one of
// a few large buffers while it copies them.
//
// # Locks
//
// fileSystem.mu guards nodes and the accounting of handles. No I/O is done while it is held.
package lazy

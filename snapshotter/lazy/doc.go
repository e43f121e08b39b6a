// Package lazy shows files that are not complete yet as one FUSE file system.
//
// The file system is a data-only lower layer of overlayfs, behind the store's objects:
//
//	lowerdir=<snapshot>::<what is complete>::<dir>/<view>
//
// Below the directory of each view, whose name is a number, it has the tree of the objects,
// /sha256/<2 hex>/<64 hex>, and shows in it every file whose size the Source knows in that view. The root
// itself is the directory of the common view, number 0. Nothing can be written, and nothing is listed: overlayfs only looks
// up names. A read waits until the Source has the verified bytes; a file that became complete
// is read from its object, without the Source.
//
// # Words
//
//	mount        the file system as the kernel knows it, with its connection
//	connection   the open /dev/fuse of a mount; requests wait in it while nobody serves
//	serving      answering the requests of a connection
//	takeover     going on to serve a connection that another process began
//	keeper       who has a copy of the connection while the daemon does not run (package fdstore)
//	node         a file or directory as the kernel knows it, by a number
//	handle       one opening of a file, from OPEN to RELEASE
//	passthrough  the kernel reads the object itself, without asking us
//
// # Dying and coming back
//
//	absent → mounted → serving ──Close, SIGKILL──▶ kept → serving (takeover)
//	                      │                          │
//	                      └──Unmount──▶ absent       └──keeper dies──▶ dead → replaced by Start
//
// While the connection is kept, readers block; nobody gets an error. The next Start takes the
// connection over: it plays the first message of the kernel (INIT), which was saved, to the
// protocol code, and asks the kernel to send again what was taken but not answered
// (FUSE_NOTIFY_RESEND, Linux 6.9). On older kernels such requests are answered with an error
// by Close, and hang until their reader is killed after a SIGKILL of the daemon; Start says so.
// If nobody kept the connection, the mount is dead: Start detaches it and mounts anew, and
// overlays on the old one get ENOTCONN for what they have not cached or opened by passthrough.
//
// Everything that an earlier process told the kernel must hold for its successor, so numbers
// of nodes follow from digests, and the rest is on disk before the kernel gets the answer.
//
// # Where it is
//
// Other layers that are mounted together with it are id-mapped by their common parent, with all that is mounted below.
// So it is at Dir, beside them, if the kernel can id-map it, and otherwise at Apart, where it is in nobody's
// way. Start moves it, under those who use it, if it is at the wrong place: it mounts the same file system at the right
// one, records that, and unmounts the other. A new mount is made at Dir, because only its INIT message tells.
//
// # On disk
//
//	<state>/mount.json   the mount: id, directory, device, INIT message, abilities
//	<state>/nodes        slots of 64 bytes: header; then node, digest, size, checksum, view
//	<state>/handles      slots of 32 bytes: header; then handle, node, request, backing, mode
//
// Each slot is written by one write that stays in one page, so a SIGKILL leaves the old slot or
// the new one. Nothing is synced: the files mean nothing after a reboot, because the mount is
// gone then. The header names the id of the mount; files of another mount are not used, and a
// new mount begins with new ones.
//
// # Numbers of nodes
//
//	1                    the root
//	2                    sha256
//	256 … 511            sha256/00 … sha256/ff
//	512 × view + these   the same of a view
//	1<<63 | 63 bits      files: the first bits of the identity (see Source); if they are taken
//	                     by another file, one of the next few numbers
//
// What a digest stands for can change, until the file is complete: a model can lie about the digest
// of its bytes, be removed, and another one come with the right bytes. So the kernel asks for each
// name each time it is opened, and another identity is another node, with pages of its own.
//
// A number stands for one digest of one view as long as the kernel knows it: until it has forgotten (FORGET) as many
// lookups as were answered, and the last handle is closed. Then its slot is free. Lookups are counted
// in memory: a node that an earlier process left stays as long as the mount.
//
// # Strangers
//
// Any container can open and look up what is shown in it as often as it likes. It may have 256
// handles, or the 64th part of those that nobody has; who it is, its control group says. An opening beyond
// gets ENFILE. The handles of earlier processes count for nobody.
//
// # Passthrough
//
// The kernel refuses (EIO) to have one file open both by passthrough and through its cache, and
// to have it open with two backing files. So a file is opened by passthrough if it is complete
// and no cached handle of it is open, and through the cache otherwise. All passthrough handles
// of a file share one backing id. Ids live with the connection, so they are part of a handle's
// slot. A SIGKILL between registering an id and writing the slot leaks the id, and with it an
// open object, until the mount ends.
//
// # Memory
//
// The kernel has at most maxBackground read-ahead requests on the way, of 1 MiB each; other
// reads are of one page. A waiting read has no memory for its answer. When the bytes are there it
// takes one of the few large buffers, for as long as it takes to copy them.
//
// # Locks
//
// fileSystem.mu guards nodes and the accounting of handles; no I/O while it is held.
package lazy

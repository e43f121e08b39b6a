// Package snapshotter is a containerd snapshotter that mounts models.
//
// It embeds containerd's overlay snapshotter and adds three things: it commits the blob layers of a
// converted image as remote snapshots, which containerd never downloads; it shows the files of a
// table layer without copying their bytes; and it builds the mounts of a chain that contains a
// model. Everything else, ordinary images above all, is handled by overlay, unchanged.
//
// # Terms
//
// A snapshot has a key while it is active and a name once it is committed. Its id is a number that
// is never reused. A model snapshot shows the files of a file table; an empty snapshot belongs to a
// blob layer. A chain is a snapshot with all its parents. A view is a directory in the store with
// the objects that one snapshot may read (store.View).
//
// # Files
//
//	<root>/metadata.db                    overlay's metadata: names, parents, labels
//	<root>/metadata.db.damaged-<time>     damaged metadata that was set aside; see Integrity
//	<root>/hide/sha256                    a whiteout over the objects of the store; see Mounts
//	<root>/snapshots/<id>/fs/             files, or stubs of files
//	<root>/snapshots/<id>/work/           overlayfs's work directory
//	<root>/snapshots/<id>/ballast.json    the marker of a model snapshot
//
// The marker is {"empty":true} or {"table":"sha256:…","show":"stubs","view":true,"shown":true,…}.
// It is written before the first file, and again with "shown" after the last. Both writes are
// durable before anything else happens. A model snapshot without "shown" cannot be committed, so
// after a crash containerd removes the active snapshot. The empty snapshot of a blob layer that was
// committed by Prepare has no marker: its label is enough.
//
// The store has a reference "snapshot/<id>" for every model snapshot, which keeps its objects. The
// reference is added before the table is hydrated and removed after the metadata of the snapshot.
// Reconcile removes what a crash in between leaves.
//
// # Integrity
//
// The root can be damaged, copied without extended attributes, or restored from a backup. Three
// records say what a committed snapshot shows: its marker, the label dev.ballast.shows in the
// metadata, and the reference in the store. A snapshot whose marker contradicts its label is not
// mounted: as an ordinary directory, its stubs would read as zeros.
//
//	New        checks the pages and records of metadata.db before bbolt maps the file. Damaged
//	           metadata is set aside as metadata.db.damaged-<time>, and ids of existing directories
//	           are not assigned again.
//	Reconcile  removes directories and references without a snapshot, except after metadata was
//	           lost, and except directories that are mounted in any mount namespace. It adds the
//	           missing reference of every marker, also of a directory unknown to the metadata.
//	Inspect    compares some stubs of every model with its table. A damaged snapshot is marked as
//	           not shown, shown again, and only then marked as shown.
//
// While containerd is served, Cleanup is the removing half of Reconcile, Verify compares every file
// with its table without reading content, and Refresh repairs. What cannot be repaired is refused
// with the command to run.
//
// # Remote snapshots
//
// Prepare of a blob layer commits an empty snapshot and returns errdefs.ErrAlreadyExists, which
// tells containerd that the layer needs no bytes. Images and pods can set any label with the prefix
// "containerd.io/snapshot/", so labels alone prove nothing: a layer is accepted only if the
// requested name is the chainID of the layers below (the end of the parent's name) and of the diffID
// that only this blob layer can have (filetable.BlobDiffID). An empty snapshot can therefore never
// take the name of a layer with content.
//
// # Parallel unpacking
//
// If containerd unpacks several layers of an image at a time (max_concurrent_unpacks, with the
// snapshotter's capability "rebase"), it prepares all of them without a parent and names the parent
// at the commit. Such a layer differs from a first layer by a label: a chainID that follows from its
// diffID and the chainID of the layer below. Prepare then makes
//
//	blob layer      an empty active snapshot with a read-only mount. containerd 2.4 takes this as
//	                "the layer is staged" and commits it; older versions fetch and apply the layer.
//	other layers    an overlay mount with an upper directory only, so that whiteouts are kept
//
// and does not return ErrAlreadyExists: containerd would use the committed snapshot as it is and
// silently drop the layers below. Commit refuses these snapshots without the parent in their labels.
//
// # Backends
//
// Package tree makes the files. Stubs get their content from the objects of the store, which are a
// data-only lower layer (Linux 6.5):
//
//	lowerdir=<snapshot>:…::<objects>,metacopy=on
//
// Reads go to the object without a daemon, all containers share its page cache, and a write makes a
// private copy in the container.
//
// With a lazy mount (UseLazy, package lazy), stubs also work for files that are incomplete but
// exposed by the store (store.Expose). Such a snapshot uses its own view, not all objects, because
// its table may name objects that it must not read. The lazy mount is a second data-only layer, and
// only of mounts made while a file of the chain is incomplete:
//
//	lowerdir=<snapshot>:…::<view>::<lazy>/<id>,metacopy=on
//
// overlayfs looks up the content of a stub when the stub is first opened, in the view first. A file
// that is complete by then is read without the daemon for as long as the mount lives; any other is
// read through the lazy mount.
//
// Hard links, the other backend, need nothing more, but have the mode and mtime of their object. The
// marker names the backend of a snapshot, so snapshots of both can be mounted at any time. Probe
// tries which backends work.
//
// # Mounts
//
// Mounts leave out empty snapshots, because mount(2) takes one page of options. A chain with stubs
// whose options do not fit, as with about forty ordinary layers above a model, is refused. A view
// snapshot is always exactly one read-only mount. The mounts of a chain without model or empty
// snapshots are exactly overlay's.
//
// containerd also parses mount options and does not know the "::" of data-only layers, so the
// options of a model have two lists of lower directories:
//
//	lowerdir=<hide>:<snapshot>:…:<objects>
//	metacopy=on
//	upperdir=<container>
//	workdir=<container>,lowerdir=<snapshot>:…::<objects>
//
// The kernel uses the last list. containerd uses the first one to look into the directories, and for
// a read-only mount of a container, for which it drops the last two options and puts the upper
// directory in front of the list. There the objects are an ordinary layer, and <hide> has a whiteout
// over their directory. In such a mount only, a file "sha256" at the top of an image is hidden.
//
// # User namespaces
//
// The mounts of a snapshot with ID mapping labels have the options uidmap and gidmap. containerd
// id-maps the directory above all lower layers, including the mounts in it, and gives the kernel the
// first list of lower directories; an image with a top-level file that <hide> would hide is refused.
//
// All listed directories must be below one directory with little else in it, on file systems that
// can be id-mapped. FUSE can be from Linux 6.12 on; the lazy mount is then below the root. Before
// that it is elsewhere, so that complete models can be mounted, and a snapshot that needs it is
// refused with errdefs.ErrUnavailable until its model is complete.
//
// A mapping is accepted for containers and image volumes only, not for image layers, whose labels
// come from annotations. A containerd without the capability "remap-ids" copies all files with new
// owners first; such a parent is recognized by its owner and is not mapped again.
//
// # Models without layers
//
// A model pulled by the digest of its original manifest has no layers for containerd. Its image
// volume is a snapshot without a parent, whose key ends in the digest of the manifest.
// Options.Volume shows the model in that snapshot, which stays active and is mounted as a read-only
// view of itself. It has a marker and a label and is inspected like a committed one. Image volumes
// that Options.Volume does not show, and keys in an unknown form, are refused: they would be empty
// directories. Options.Bare can refuse other snapshots without a parent that are not for unpacking.
//
// # Models on the host
//
// A model for processes on the host is shown in the same way, in a snapshot with the key "host:"
// and the mount point. Walk hides it, since containerd's garbage collector would remove it. The
// caller of PrepareHost makes the mount. RemoveHost checks all mount namespaces first.
package snapshotter

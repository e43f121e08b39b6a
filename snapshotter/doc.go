// Package snapshotter is a containerd snapshotter that shows models.
//
// It is containerd's overlay snapshotter, embedded, with three additions: it claims the
// blob layers of a converted image as remote snapshots, which containerd never downloads; it shows the
// files of a table layer without copying their bytes; and it builds the mounts of a chain
// that holds a model. Everything else, ordinary images above all, is overlay's, unchanged.
//
// # Words
//
// A snapshot has a key while it is active and a name once it is committed; its id is a
// number that is never used again. The directory of a snapshot is <root>/snapshots/<id>,
// with what it shows below fs/. A model snapshot is one that a file table was shown in; an
// empty snapshot is one of a blob layer. A chain is a snapshot with all its parents.
//
// # On disk
//
//	<root>/metadata.db                    overlay's metadata: names, parents, labels
//	<root>/metadata.db.damaged-<time>     what was set aside; see Doubt
//	<root>/hide/sha256                    a whiteout over the store's objects
//	<root>/snapshots/<id>/fs/             files, or stubs of files
//	<root>/snapshots/<id>/work/           overlayfs's own
//	<root>/snapshots/<id>/ballast.json    the marker; only in snapshots that are ours. A blob layer that
//	                                      was claimed has none: the label says what it is
//
// The marker is {"empty":true} or {"table":"sha256:…","show":"stubs","view":true,"shown":true,…}. It is
// written before the first file and again, with "shown", after the last; both times it is
// durable before anything else happens. A model snapshot without "shown" can not be
// committed, so a crash leaves an active snapshot that containerd removes.
//
// The store has a reference "snapshot/<id>" for every model snapshot, which keeps its
// objects. It is made before the table is hydrated and removed after the metadata of the
// snapshot; Reconcile mends what a crash in between left over.
//
// # Doubt
//
// What the root says is compared before it is believed, because it can be damaged, copied without
// attributes, or put back from a backup. Three say what a committed snapshot shows: its marker, the
// label dev.ballast.shows in the metadata, and the reference in the store. If the marker does not
// say what the label says, the snapshot is not mounted: as an ordinary directory, stubs are zeros.
//
//	New        metadata.db is read whole, as bytes, before bbolt maps it: every page is used
//	           or free once, and no id, parent or time can not be. What is damaged is set aside as
//	           metadata.db.damaged-<time>, and no id that a directory has is given again.
//	Reconcile  Directories and references that no snapshot has are removed, but not after the
//	           metadata was lost, and never what is mounted in any process's namespace. Every
//	           marker has its reference, also one of a directory that the metadata does not know.
//	Inspect    Some stubs of every model are compared with its table. A snapshot that is not
//	           right is marked as not shown, shown again, and only then marked as shown.
//	serving    Cleanup is Reconcile's first half. Verify compares every file with its table,
//	           without reading content; Refresh shows again.
//
// What can not be mended is refused with the command to run.
//
// # Remote snapshots
//
// Prepare of a blob layer commits an empty snapshot at once and answers
// errdefs.ErrAlreadyExists, which tells containerd that the layer needs no bytes. An image
// can put any label with the prefix "containerd.io/snapshot/" on its layers, and a pod on its sandbox, so
// the labels prove nothing alone: a layer is claimed only if the name that is asked for is the chainID of
// the layers below, which ends the name of the parent, and of the diffID that only a blob layer
// can have (filetable.BlobDiffID). An empty snapshot can thus never have the name of a layer with content.
//
// # Unpacking in parallel
//
// A containerd that unpacks several layers of an image at a time (max_concurrent_unpacks, with the
// capability "rebase" of the snapshotter) prepares them all without a parent and names it at the
// commit, in the order of the layers. What it says of the layer in labels tells that from a first
// layer: a chainID that follows from the diffID and the chainID below. Then
//
//	blob layer      an empty active snapshot, with a read-only mount: containerd 2.4 knows by this that
//	                the layer is there already ("staged"), and commits it. An older one fetches and applies it.
//	ordinary layer  an overlay mount with an upper directory alone, so that whiteouts are made as such
//	table layer     the same
//
// ErrAlreadyExists would have containerd take the committed snapshot as it is, and cut off all that is
// below it without an error. Commit refuses any of these without the parent that its labels name.
//
// # Two backends
//
// Package tree makes the files. As stubs, they have the store's objects as data-only lower layer:
//
//	lowerdir=<snapshot>:…::<objects>,metacopy=on
//
// Reads go to the object without any daemon, all containers share its page cache, and a
// write makes a private copy in the container. Needs Linux 6.5.
//
// Stubs can also be shown of files that are not complete but that the store can read (store.Expose),
// if there is a mount of these files (UseLazy, package lazy). Such a snapshot does not see all objects, as it
// may name some that it may not have, but its own view in the store (store.View). The mount is a second
// data-only layer, of the mounts that are made while a file of the chain is not complete:
//
//	lowerdir=<snapshot>:…::<view>::<lazy>/<id>,metacopy=on
//
// overlayfs looks for the content of a stub when it is first opened, in the view first. So a
// file that was complete by then is read without the daemon for as long as the mount lives; one that
// was not is read through the lazy mount; and mounts made after the last file was complete do not
// have that layer at all, so that nothing needs it any more.
//
// As links, they need nothing more, but have the mode and the mtime of their object.
//
// Which backend a snapshot has is in its marker, so that both can be mounted at any time.
// Probe finds out what works by trying it.
//
// # Mounts
//
// A mount of a chain with a model leaves out the empty snapshots: mount(2) takes one page
// of options. A chain with stubs whose options would not fit, as with about forty ordinary
// layers above a model, is refused. A View is always exactly one read-only mount. The mounts
// of a chain with nothing of ours are exactly overlay's.
//
// containerd reads mount options too, and does not know the "::" of data-only layers. So the
// options of a model have two lists of lower directories:
//
//	lowerdir=<hide>:<snapshot>:…:<objects>
//	metacopy=on
//	upperdir=<container>
//	workdir=<container>,lowerdir=<snapshot>:…::<objects>
//
// The kernel takes the last one. containerd takes the first, to look into the directories,
// and to make a read-only mount of a container, for which it drops the last two lines and
// puts the upper directory in front of the list. There the objects are an ordinary layer,
// and <hide> has a whiteout over their directory. (In such a mount, and only there, a file
// named "sha256" at the top of an image is not seen.)
//
// # User namespaces
//
// A snapshot with the labels of a mapping of users is mounted with the options uidmap and gidmap. They are for
// containerd, which id-maps the lower layers: the directory that all of its list are below, with what is mounted
// there. It hands the kernel that list, last, so there too the objects are an ordinary layer; an image with a file that
// <hide> would hide is refused. What is written belongs to the users of the host.
//
// Everything that is in the list must be below one directory that has little else in it, and must be a file
// system that can be id-mapped. FUSE can be from Linux 6.12 on: then the lazy mount is below the root, beside the
// snapshots and the objects. Otherwise it is elsewhere, so that what is complete can be mounted, and a snapshot that
// needs it is refused with errdefs.ErrUnavailable until its model is complete (UseLazy).
//
// A mapping comes with the snapshot of a container, or of an image volume, never with a layer of an image: labels of layers
// are made of annotations. A containerd that has not been told that users are mapped here gives a copy
// of all files to them first. Such a parent is no layer of an image, and its root belongs to root of the mapping: then nothing
// is mapped once more.
//
// # Models without layers
//
// A model that was pulled by the digest of its registry has no layers for containerd. An image volume of it is a
// snapshot without a parent, whose key ends in the digest of the manifest. Options.Volume shows the model in
// that snapshot itself, which stays active and is mounted as a view of itself, read-only. It is marked, labelled and
// inspected as a committed one is. What Options.Volume does not show is refused, also under keys that do not look as
// they are known, since it would be an empty directory; and so is any other snapshot without a parent that nothing
// is unpacked into, if Options.Bare says so.
//
// # Models on the host
//
// A model for processes of the host, which are in no container, is shown in the same way, in a snapshot whose key is
// that of no containerd: "host:" and the directory where it will be mounted. It is nobody's but ours: Walk hides it, as
// containerd's collector would remove it. Who asked for it makes the mount. It is looked for in all mount namespaces
// before the snapshot is removed (RemoveHost).
package snapshotter

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
//	<root>/hide/sha256                    a whiteout over the objects of the store (lowerOptions)
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
//	           are not assigned again. The snapshots in it are lost: their images must be pulled again,
//	           for which the store still has the files.
//	Reconcile  removes directories and references without a snapshot, except after metadata was
//	           lost, and except directories that are mounted in any mount namespace. It adds the
//	           missing reference of every marker, also of a directory unknown to the metadata.
//	Missing    finds what containerd has recorded and the metadata have not. If they have none (Empty),
//	           the daemon has containerd forget what is lost.
//	Inspect    compares some stubs of every model with its table. A damaged snapshot is marked as
//	           not shown, shown again, and only then marked as shown. Stubs become links if this
//	           kernel, older than the one before, cannot mount stubs.
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
// at the commit. See rebase.go.
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
// A repair keeps the view. A snapshot whose marker is lost has its own view afterwards, which is enough for what its
// sources gave. Stubs of a view become links, which show objects, when the view has all of them.
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
// With ID mapping labels, mounts are id-mapped by containerd (idmap.go). Image volumes of models
// without layers (volume.go) and models for processes on the host (host.go) are active snapshots,
// with a marker and a label like committed ones.
package snapshotter

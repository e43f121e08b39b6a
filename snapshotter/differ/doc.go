// Package differ is containerd's proxy differ for the layers of a converted model.
//
// containerd asks a differ to apply each layer of an image to the mounts of a snapshot, and compares
// the returned digest with the diffID in the image's config.
//
//   - The table layer has the file table of a model. Apply reads it from containerd's content store,
//     puts it into the store, waits until every file is verified, or can be read before that (Mode),
//     and lets the snapshotter show the files. Its diffID is its own digest.
//   - A blob layer is normally not applied, because the snapshotter commits it in Prepare. Clients
//     that unpack without the labels of a pull apply it. Apply needs no bytes: if containerd has the
//     blob, applying the table layer finds it. Its diffID is filetable.BlobDiffID.
//   - Any other layer is applied by containerd: Apply calls containerd's diff service, whose
//     configuration names another differ after this one. The content does not leave containerd and
//     is unpacked in the same way as for other images.
//
// A layer of a model on mounts of another snapshotter is an error: there it would be an empty
// directory. Compare is left to containerd's own differ.
//
// # When a model is shown
//
//	mode      large files with chunk digests         without
//	complete  when everything is complete            the same
//	auto      at once, after the small files         the same as complete
//	lazy      at once                                at once; a read waits for the whole file
//
// "At once" is after one byte of the largest file was fetched, which reports a registry that does not
// have the file, refuses access or does not support ranges while the caller still waits. A model that
// cannot be read early is shown when it is complete, and the log has the reason. Options.Background
// downloads the rest. Show, for image volumes, waits for two seconds: its caller tries again.
//
// Options.Check decides, before the first byte is fetched, whether the model may be shown, for example
// by its signatures. A decision that needs the files is repeated when the model is complete, in every
// mode, before a file is shown.
//
// # Sources of the bytes
//
// The first source is containerd's content store, which has the blobs if the image was pulled with
// all layers ("ctr images pull --local"); then come the sources of Options.Upstream. Both depend on
// the repository being pulled from: the one in the annotation that containerd adds to layers, if
// containerd recorded the same for the table layer in its labels
// "containerd.io/distribution.source.<host>", otherwise the recorded ones.
//
// All users of the node share the content store. Only blobs that containerd recorded for the same
// repository are used; others are treated as missing. Their bytes are private, because the
// credentials of their pull are unknown. containerd also writes the label without asking the registry
// if an image names a blob that exists in the same namespace. Images that share blobs in containerd in
// this way also share them here.
//
// # Namespaces
//
// A request has the namespace of its client. Apply adds it to the outgoing metadata, which calls back
// to containerd need.
package differ

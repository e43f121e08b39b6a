// Package differ is the proxy differ of containerd for the layers of a converted model.
//
// containerd asks a differ to apply each layer of an image to the mounts of a snapshot and
// compares the digest it returns with the diffID in the image's config. There are three
// kinds of layers:
//
//   - The table layer holds the file table of a model. Apply reads it from containerd's
//     content store, gives it to the store, waits until every file is there and verified,
//     or can be read before that (Mode), and has the snapshotter show the files. Its diffID is
//     its own digest.
//   - A blob layer is normally never applied, because the snapshotter claims it. A client
//     that unpacks without saying what it unpacks asks nevertheless. Apply needs no bytes
//     of it: if the blob is in containerd's content store, applying the table layer will
//     find it there. Its diffID is store.BlobDiffID.
//   - Any other layer is applied by containerd itself, on the mounts of whatever snapshotter:
//     Apply asks its diff service, whose order has another differ after this one. So its content
//     does not leave containerd, and is not unpacked by a second program in another way.
//
// A layer of a model on the mounts of another snapshotter is an error: it would be an empty
// directory there. Compare is left to containerd's own differ.
//
// # When a model is shown
//
//	mode      large files with digests of chunks     without
//	complete  when all is complete                   the same
//	auto      at once, after the small files without the same as complete
//	lazy      at once                                at once; who reads such a file waits for it
//
// "At once" is after a byte of the largest file was fetched: a registry that does not have it, does
// not give it to us, or does not serve ranges is found out while somebody waits for an answer. What
// can not be read early for whatever reason is shown when it is complete, and the log says why.
// Options.Background brings the rest.
//
// Options.Check is asked before the first byte is fetched whether the model may be shown, by its signatures
// for one. What can only be said of files that are known is asked again when it is complete, in every mode,
// and before a file of it is shown.
//
// # Where the bytes of a model come from
//
// First from containerd's content store, which has them when the image was pulled whole
// ("ctr images pull --local"), then from what Options.Upstream returns. Both are told the
// repository that is pulled from: that of the annotation that containerd gives layers, if
// containerd recorded the same for the table layer in the labels
// "containerd.io/distribution.source.<host>", otherwise those that it recorded.
//
// The content store has blobs of all who pull on the node. Those are there that containerd has from
// the repository pulled from, by the same labels; what they are of others looks as if it were not
// there. Their bytes count as private, as nobody knows with which credentials they came. containerd
// itself writes the label without asking the registry, when an image names a blob that it has in the
// same namespace: what it shares in that way between images, it shares here too.
//
// # Talking back
//
// A request comes with the namespace of its client. Calls back to containerd need it again,
// as outgoing metadata; Apply attaches it.
package differ

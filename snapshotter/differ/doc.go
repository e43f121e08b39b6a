// Package differ is the proxy differ of containerd for the layers of a converted model.
//
// containerd asks a differ to apply each layer of an image to the mounts of a snapshot and
// compares the digest it returns with the diffID in the image's config. There are three
// kinds of layers:
//
//   - The table layer holds the file table of a model. Apply reads it from containerd's
//     content store, gives it to the store, waits until every file is there and verified,
//     and has the snapshotter show the files. Its diffID is its own digest.
//   - A blob layer is normally never applied, because the snapshotter claims it. A client
//     that unpacks without saying what it unpacks asks nevertheless. Apply needs no bytes
//     of it: if the blob is in containerd's content store, applying the table layer will
//     find it there. Its diffID is store.BlobDiffID.
//   - Any other layer is applied as containerd itself does, on the mounts of whatever
//     snapshotter.
//
// A layer of a model on the mounts of another snapshotter is an error: it would be an empty
// directory there. Compare is left to containerd's own differ.
//
// # Where the bytes of a model come from
//
// First from containerd's content store, which has them when the image was pulled whole
// ("ctr images pull --local"), then from what Options.Upstream returns. It is told the
// repository of the image being pulled, from the annotation that containerd gives layers, and
// those that containerd recorded for the table layer in the labels
// "containerd.io/distribution.source.<host>".
//
// # Talking back
//
// A request comes with the namespace of its client. Calls back to containerd need it again,
// as outgoing metadata; Apply attaches it.
package differ

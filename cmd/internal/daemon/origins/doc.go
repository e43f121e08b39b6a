// Package origins shows models pulled by the digest that their registry gives them, as image
// volumes of pods.
//
// containerd has only the manifest and config of such an image, and creates an empty snapshot for
// the volume, whose key contains the digest of the manifest. It passes neither the name requested
// by the pod nor the credentials of the pull, and treats images with the same config as one. So a
// model is shown only if
//
//   - a repository by which containerd has the image serves the model without credentials: its bytes are downloaded
//     from such repositories, without credentials, and by the rules of the store for strangers. Or, if callers have
//     read it with credentials by every name of the image since the pull that made it, and the repository of each
//     name gives all bytes: whichever the pod named, it is shown nothing that this name does not give,
//   - all names are public, or all are private, if there are rules for signatures,
//   - no other image that containerd has there has the same config: a pod that requests one would get the other.
//
// Everything else is refused with the digest to use instead. Clients other than CRI mount with a
// key without the digest: that is refused where such images exist.
//
// A reference "origin/<digest>" protects the model of an image that was shown, for as long as
// containerd has the image.
package origins

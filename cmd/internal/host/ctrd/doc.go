// Package ctrd asks a running containerd: its plugins and CRI, and in a namespace its images with their manifests,
// its containers, leases and snapshots. Nobody else calls services of containerd, but for the pull of a pod and what
// is proxied: so what a label or a document of containerd means stands in one place.
//
//	image ──target──▶ index ──▶ manifest ──▶ config ──label gc.ref.snapshot.NAME──▶ snapshot of the last layer
//	lease ──resources──▶ snapshots
//	container ──▶ snapshotter, key
//
// A Client is for the namespace of the context, as in containerd; EachNamespace visits all. Errors are those of
// errdefs.
package ctrd

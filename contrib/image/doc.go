// Image builds the container image of ballast without an image builder: an OCI layout with an index of
// one image for each architecture.
//
//	image -o DIR [-arch amd64,arm64] [-version V] [-epoch SECONDS]    write the layout
//	image -demo -o DIR [-version V] [-epoch SECONDS]                  write that of the demo
//	image -root DIR -arch ARCH [-version V]                           write the files of one image, for the Dockerfile
//
// It runs in the repository, and builds the programs itself. Each image has two layers: the files that
// are the same for all architectures (certificates, the licence, the licences of linked modules, /tmp), and the two static programs.
// There is no shell and no library.
//
// The image of the demo has containerd, ctr, the shim, runc and the demo beside the programs, and nothing else. All of it has
// licences that permit to give it away with their texts alone: runc is without libseccomp, and linked with musl.
//
// The same commit, version and Go version result in the same bytes, see the package build: times are those of
// the commit, and the certificates are those of Mozilla in a module (golang.org/x/crypto/x509roots), not of the
// building machine. Roots that Mozilla trusts only for some certificates are left out, because a file
// of certificates cannot express that.
//
// The image runs as root. ballastd mounts and writes the files of any user, `ballast setup` writes to
// /etc of the node, and the sockets and keys belong to root; see contrib/docs/security.md.
package main

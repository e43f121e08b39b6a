// Image builds the container image of ballast without an image builder: an OCI layout with an index of
// one image for each architecture.
//
//	image -o DIR [-arch amd64,arm64] [-version V] [-epoch SECONDS]    write the layout
//	image -root DIR -arch ARCH [-version V]                           write the files of one image, for the Dockerfile
//
// It runs in the repository, and builds the programs itself. Each image has two layers: what is the same for all
// architectures (certificates, the licence, /tmp), and the two static programs. There is no shell and no
// library.
//
// The same commit and the same Go version give the same bytes: times are those of the commit, the certificates are those
// of Mozilla in a module (golang.org/x/crypto/x509roots), not of the machine that builds. Roots that Mozilla trusts
// for some certificates only are left out, because a file of certificates can not say so.
//
// The image runs as root. ballastd mounts and writes the files of any user, `ballast setup` writes to /etc of the node,
// and the sockets and keys are root's; see contrib/docs/security.md.
package main

// Release builds a release of ballast, all in one directory:
//
//	release -version v0.1.0 -o DIR [-key FILE]
//
//	ballast_0.1.0_linux_ARCH.tar.gz    programs, the demo, man pages, completion, units, objects of Kubernetes
//	ballast_0.1.0_ARCH.deb             the same as a package of Debian and Ubuntu
//	ballast-0.1.0-1.ARCH.rpm           and of Fedora and its relatives
//	ballast_0.1.0_image.tar            the container image for both architectures, an OCI layout
//	ballast-demo_0.1.0_image_ARCH.tar  the same of the demo, for the architecture of the machine that builds it
//	ballast-0.1.0.tgz                  the Helm chart
//	ballast_0.1.0_sbom.cdx.json        what is linked into the programs, in CycloneDX
//	SHA256SUMS                         the digests of the files above
//	SHA256SUMS.sigstore.json           its signature, for "cosign verify-blob", with the public key in ballast.pub
//
// A release is of a commit: the clone has no changes, chart and CHANGELOG.md name the version, and SECURITY.md and
// install.md name the fingerprint of the key that signs. The same commit, version and version of Go result in the
// same bytes in any clone; see the package build. The image of the demo has a runc in C, so it also needs the same
// version of musl-gcc.
//
// With -only it writes parts of a release, also of a clone with changes. An image alone has a name without the
// version, and its layout remains beside the tar:
//
//	release -only image -o DIR [-arch amd64,arm64] [-version V]    write DIR/image and DIR/image.tar
//	release -only demo -o DIR [-version V]                         write DIR/demo and DIR/demo.tar
//	release -only root -o DIR -arch ARCH [-version V]              write the files of one image, for the Dockerfile
//
// # Packages
//
// nfpm.yaml describes the packages. A package has its programs in /usr/bin and its units in /usr/lib/systemd/system,
// and enables nothing: "ballast setup" uses both where they are. What setup writes is setup's, not the package's. The
// scripts of a package never touch containerd. An upgrade restarts a ballastd that runs. The removal of a package
// that setup uses is refused, because containerd would be left with a snapshotter that does not answer. Models and
// settings go with a purge, which only Debian has.
//
// # Images
//
// Each image has two layers: the files that are the same for all architectures (certificates, the licence, the
// licences of linked modules, /tmp), and the static programs. There is no shell and no library. The certificates are
// those of Mozilla in a module (golang.org/x/crypto/x509roots), not of the building machine. Roots that Mozilla
// trusts only for some certificates are left out, because a file of certificates cannot express that. The image runs
// as root: ballastd mounts and writes the files of any user, `ballast setup` writes to /etc of the node, and the
// sockets and keys belong to root; see contrib/docs/security.md.
//
// The image of the demo has containerd, ctr, the shim, runc and the demo beside the programs, and nothing else. All
// of it has licences that permit to give it away with their texts alone: runc is without libseccomp, and linked with
// musl.
//
// # Tools
//
// nfpm makes the packages and go-containerregistry the images. goreleaser and ko are not used, because the tests
// build all parts of a release: goreleaser 2.15 compiles 1529 packages of 326 modules in more than seven minutes of
// one processor, this program 235 of 50. goreleaser also runs syft, cosign and docker, which would have to be built,
// and leaves man pages, completion, notices and the image of the demo to scripts. ko 0.19 (707 packages) puts one
// program into an image, in /ko-app, on an image of a registry.
package main

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
// install.md name the fingerprint of the key that signs. The same commit,
// version and version of Go result in the same bytes in any clone; see contrib/image/build. The image of the demo has
// a runc in C, so it also needs the same version of musl-gcc.
//
// # Packages
//
// A package has its programs in /usr/bin and its units in /usr/lib/systemd/system, and enables nothing: "ballast setup"
// uses both where they are. What setup writes is setup's, not the package's. The scripts of a package never touch
// containerd. An upgrade restarts a ballastd that runs. The removal of a package that setup uses is refused, because
// containerd would be left with a snapshotter that does not answer. Models and settings go with a purge, which only
// Debian has.
package main

// Package clients tests common clients against whole nodes with ballast: nerdctl, crictl, critest,
// oras, crane, skopeo, podman and buildah. `make clients` builds the clients from their modules, or installs those of
// Debian, and runs the tests. All that pull or copy models also do so with a password.
//
// If a client cannot do something with overlayfs either, the test also runs with a stock containerd and
// expects the same result.
package clients

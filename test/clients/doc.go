// Package clients tests common clients against whole nodes with ballast: nerdctl, crictl, critest,
// oras, crane and skopeo. `make clients` builds the clients from their modules and runs the tests.
//
// If a client cannot do something with overlayfs either, the test also runs with a stock containerd and
// expects the same result.
package clients

// Package clients has journeys with the clients that people have: nerdctl, crictl, critest, oras, crane
// and skopeo, against whole nodes with ballast. `make clients` builds the clients from their modules and
// runs them.
//
// What a client can not do with overlayfs either is no fault of ballast: where that is so, the journey
// runs with a stock containerd too, and wants the same of both.
package clients

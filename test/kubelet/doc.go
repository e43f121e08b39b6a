// Package kubelet runs the journeys of pods: a real kubelet, without an API server, on a node of
// test/e2e/node. What a pod's owner sees is compared: status, events, and the files in the pod.
//
// The kubelet is built by `make kubelet` from the module in build. Its pods are files (static pods), their
// status comes from its own API, their events from its log, which is where it writes them when there is
// nobody to send them to.
//
// # Isolation
//
// Everything that is kept is on a file system of its own, which the kubelet can measure. What a kubelet changes
// on a machine is hidden from it: its directories are private mounts, and the settings of the kernel that it
// sets are read from files that have what it wants.
package kubelet

// Package kubelet tests pods with a real kubelet, without an API server, on a node of test/e2e/node.
// The tests check what the owner of a pod sees: status, events, and the files in the pod.
//
// `make kubelet` builds the kubelet from the module in build. Its pods are files (static pods), their
// status comes from the kubelet's API, and their events from its log, where it writes them if there is
// no API server.
//
// # Isolation
//
// All files are on a separate file system, which the kubelet can measure. What a kubelet changes on a
// machine is hidden from it: its directories are private mounts, and the kernel settings that it would
// set are files with the right values.
package kubelet

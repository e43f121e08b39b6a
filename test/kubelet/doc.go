// Package kubelet tests pods with a real kubelet on a node of test/e2e/node.
// The tests check what the owner of a pod sees: status, events, and the files in the pod.
//
// `make kubelet` builds the kubelet from the module in build. There is no API server. Most pods are files
// (static pods), their status comes from the kubelet's API. Pods with secrets, and admission webhooks, need
// an API: apiServer has the part of it that a kubelet uses. Events come from the kubelet's log.
//
// # Isolation
//
// All files are on a separate file system, which the kubelet can measure. What a kubelet changes on a
// machine is hidden from it: its directories are private mounts, and the kernel settings that it would
// set are files with the right values.
package kubelet

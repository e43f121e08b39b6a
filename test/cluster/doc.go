// Package cluster tests ballast-fleet with a real etcd, API server, scheduler and controllers, and nodes with a real containerd
// and ballastd. A node has no kubelet: what a kubelet would do for it, such as the registration, the test does. Pods with a
// kubelet are tested in package kubelet, and the chart on a whole machine in package vm.
//
// The tests need root and the programs that `make cluster` builds:
//
//	make cluster RUN=TestModelSets
package cluster

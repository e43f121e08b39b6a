// Package cluster tests the chart and ballast-fleet with a real etcd, API server, scheduler and controllers.
//
// TestInstall has machines: a kubelet and a containerd in namespaces of their own, where the commands of the pages
// are typed. The nodes of the other tests have a real containerd and ballastd and no kubelet: what it would do for
// them, such as the registration, the test does. Pods with a kubelet alone are tested in package kubelet, and the
// chart with systemd in package vm.
//
// The tests need root and the programs that `make cluster` builds:
//
//	make cluster RUN=TestModelSets
package cluster

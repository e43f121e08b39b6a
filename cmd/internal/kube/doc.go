// Package kube changes two things of a Kubernetes node: a label for nodes with ballast, and the
// taint that keeps pods away until ballast is ready. It also counts the ready pods of a DaemonSet.
//
// These are three requests, so they use plain HTTPS and not client-go. A change of a node is a JSON
// patch (RFC 6902) that tests what it removes: it never overwrites a concurrent change of the same
// taints; the API server refuses the patch instead, and a new one is made. Nothing else of the node
// is in the patch, so an admission policy can limit the service account to just that, on its own
// node only.
//
// The token of the service account is read for each request: the kubelet renews the file.
//
//	https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/node-v1/
package kube

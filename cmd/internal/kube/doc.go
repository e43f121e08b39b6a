// Package kube changes two things of a node in Kubernetes: a label that says that ballast is there, and the taint
// that keeps pods away until it is. It also counts the pods of a DaemonSet that are ready.
//
// These are three requests, so they are plain HTTPS and not client-go. A change of a node is a JSON patch
// (RFC 6902) that tests what it removes: who changes the same taints at the same time is never overwritten, the API
// server refuses the patch instead, and it is made anew. Nothing else of the node is in the patch, so that an
// admission policy can hold the service account to just that, on its own node only.
//
// The token of the service account is read for each request: the kubelet renews the file.
//
//	https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/node-v1/
package kube

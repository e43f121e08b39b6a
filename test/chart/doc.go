// Package chart tests the installation on a cluster: the Helm chart, its Kustomize counterpart, and the
// container image.
//
// The objects are rendered by the libraries of Helm and Kustomize, strictly decoded into the types of
// the Kubernetes API, and compared with each other. Package e2e tests them on a node.
//
// This is a separate module, because those libraries have many dependencies.
package chart

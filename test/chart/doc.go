// Package chart tests what brings ballast to a cluster: the Helm chart, its Kustomize twin, and the container image.
//
// The objects are rendered by the libraries of Helm and Kustomize, decoded strictly into the types of the Kubernetes API, and
// compared with one another. What they do is tried on a node: see package onnode.
//
// This is a module of its own, because those libraries have many dependencies.
package chart

// Package agent is the part of ballast-fleet on a node: it labels the node, removes its startup taint, has the daemon
// fetch the models of all ModelSets for the node, and writes the ModelNode.
package agent

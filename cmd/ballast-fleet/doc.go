// Ballast-fleet is the part of ballast that talks to Kubernetes. The daemon, which is root, does not.
//
//	ballast-fleet agent        on each node: labels the node, removes its startup taint, has the daemon fetch
//	                           the models of all ModelSets for this node, and writes the ModelNode
//	ballast-fleet controller   once in a cluster: counts nodes into the status of ModelSets
//	ballast-fleet leave        on each node, at the removal of ballast: removes the labels
//	ballast-fleet gone         once, at the removal of ballast: waits until all nodes are done
//
// The agent (package agent) and the controller are reconcilers. What they decide is in functions of package plan
// without clients, clocks and state.
//
// # Load on the API server
//
// An agent has three watches: the ModelSets, its own node, and the metadata of its ModelNode. It writes the ModelNode
// at most each 10 s when a phase, an error or a pin changes, and otherwise at most each 30 s. The controller watches
// ModelSets, ModelNodes, the metadata of nodes, and the pods of the DaemonSet. It counts a set at most each second, and
// writes its status, which all agents get, at most each 10 s, and each minute if hardly anything has changed.
//
// # Many nodes
//
// The watches of the controller keep what it and the page read, and nobody copies it. A table has a row for each node.
// The change of an object changes its row, and has those sets counted again that have a model which has changed there,
// or whose nodes are others now. A count adds up the rows: it takes about half a microsecond for each node and model.
package main

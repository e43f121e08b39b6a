// Ballast-fleet is the part of ballast that talks to Kubernetes. The daemon, which is root, does not.
//
//	ballast-fleet agent        on each node: labels the node, removes its startup taint, has the daemon fetch
//	                           the models of all ModelSets for this node, and writes the ModelNode
//	ballast-fleet controller   once in a cluster: says which version of each model nodes have, and counts nodes into
//	                           the status of ModelSets
//	ballast-fleet leave        on each node, at the removal of ballast: removes the labels
//	ballast-fleet gone         once, at the removal of ballast: waits until all nodes are done
//
// The agent (package agent) and the controller are reconcilers. What they decide is in functions of package plan
// without clients, clocks and state.
//
// # Load on the API server
//
// An agent has three watches: the ModelPlans, its own node, and the metadata of its ModelNode. It writes the ModelNode
// at most each 10 s when a phase, an error or a pin changes, and otherwise at most each 30 s. The controller watches
// ModelSets, ModelPlans, ModelNodes, the metadata of nodes, and the pods of the DaemonSet. It counts a set at most each
// second, and writes its status at most each 10 s, and each minute if hardly anything has changed. A ModelPlan, which
// all agents get, changes with the spec of its set, with its turns and with what its tags point to.
//
// # Versions
//
//	ModelSet.spec ── controller: which node looks up ──▶ ModelPlan ──▶ its agent asks ballastd, which asks the registry
//	                                  ▲                                    │
//	                                  └── ModelNode.status.list[].lookup ◀─┘
//	ModelSet.status.versions, ModelPlan ──▶ all agents have ballastd pull the tag as that digest
//
// The term of a version is that of its node: what a node said in an earlier term does not count. Sets that share a tag
// have the version of the latest term.
//
// # Many nodes
//
// The watches of the controller keep what it and the page read, and nobody copies it. A table has a row for each node.
// The change of an object changes its row, and has those sets counted again that have a model which has changed there,
// or whose nodes are others now. A count adds up the rows: it takes about half a microsecond for each node and model.
package main

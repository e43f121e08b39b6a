// Package page shows the ModelSets of a cluster to people: an HTML page without scripts and without other files,
// which a browser loads again by itself.
//
// A row of a set is a model, and each square of it a node, in the order of their names, so that a node is at the same
// place in all rows. With many nodes and models there are several pages, each with a part of the rows, and with what is
// stuck, sources and disks of all nodes: nodes that are ready side by side take no more than one, any other node up to
// 16 bytes of a row.
package page

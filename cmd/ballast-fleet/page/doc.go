// Package page shows the ModelSets of a cluster to people: an HTML page without scripts and without other files,
// which a browser loads again by itself.
//
// A row of a set is a model, and each square of it a node, in the order of their names, so that a node is at the same
// place in all rows. The page is as large as its pictures: a node takes about 20 bytes of a row.
package page

// Package test checks rules for the whole repository: imports between packages, facts that are written
// in one place only, sizes, and package documents.
//
// Below it are test/e2e, the journeys through a real containerd; test/e2e/node, which sets up the nodes;
// test/clients, journeys with other clients; test/mirror, which reads the output of ballast with other libraries;
// test/mutants, which breaks promises in the code; test/llama, a server that reads models; and test/ballast-demo. They are a separate module, so that
// dependencies of tests stay out of the product's go.mod.
package test

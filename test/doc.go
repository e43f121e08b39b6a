// Package test checks the whole repository: which package may import which, what is said in
// one place only, and that every package says what it is for.
//
// Below it are test/e2e, the journeys through a real containerd, test/e2e/node, which sets
// them up, test/clients, journeys with the clients of others, test/mirror, what ballast writes in the
// libraries of others, and test/demo. They are a module of their own, so that what only tests need stays
// out of the product's go.mod.
package test

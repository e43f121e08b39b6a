// Package e2e has the journeys: what a user does with a model, from the registry to the bytes
// that a process in a container reads, with nothing imitated on the way.
package e2e

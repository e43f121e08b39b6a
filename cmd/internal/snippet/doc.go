// Package snippet writes the pieces of configuration that containerd needs to work with
// ballast: the drop-in for its config.toml, and hosts.toml files. Tests feed what is written
// here to containerd's own readers, and the journeys run with it.
package snippet

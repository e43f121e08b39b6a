// Package snippet writes the configuration that containerd needs to work with ballast: the drop-in
// for its config.toml, and hosts.toml files. Tests load the results with containerd's own readers,
// and the end-to-end tests run with them.
package snippet

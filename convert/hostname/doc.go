// Package hostname says which registries and repositories are meant by names that people write, in references, in
// configurations and in files with credentials. It has no dependencies, so that clients of the daemon can link it.
package hostname

// Package upstream says how registries are reached, how names are resolved and whose signatures
// count: the same for the daemon and for the parts of the command line that work without it.
package upstream
